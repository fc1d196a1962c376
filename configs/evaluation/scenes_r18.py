# Synthetic scenes for the protocol `segment` with the demo's network and all four stages. The
# background is ignored, so the score only shows whether the features distinguish kinds of polygons.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0),
    test=dict(type='Scenes', count=300, seed=1),
    settings=dict(segment=dict(layers=[0, 1, 2, 3], size=96, ignore=[0], epochs=10, lr=0.01)),
)
