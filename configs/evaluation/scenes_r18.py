# Synthetic scenes for the protocol `segment` with the demo's network: all four stages, whole images, and shapes about as
# large as the demo's. 90 % of the pixels are background. The background is ignored, so the score only shows whether the
# features distinguish kinds of shapes. The scenes are synthetic, so no data set is needed.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0),
    test=dict(type='Scenes', count=300, seed=1),
    settings=dict(
        segment=dict(
            layers=[0, 1, 2, 3], size=64, crop=None, ignore=[0], epochs=30, lr=0.01, bank=20_000
        )
    ),
)
