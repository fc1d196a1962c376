# Drawn scenes of 96 pixels for `segment`, with the demo's network: all four stages, whole images. Needs no data.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0),
    test=dict(type='Scenes', count=300, seed=1),
    settings=dict(
        segment=dict(layers=[0, 1, 2, 3], size=96, crop=None, epochs=20, lr=0.01, bank=20_000)
    ),
)
