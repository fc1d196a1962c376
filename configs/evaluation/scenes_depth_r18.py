# Synthetic scenes of 96 pixels with known depth, for the protocol `depth_probe`. Scenes are drawn by the program, so no
# data set is needed.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0, target='depth'),
    test=dict(type='Scenes', count=300, seed=1, target='depth'),
    settings=dict(depth_probe=dict(layers=[0, 1, 2, 3], size=96, crop=None, epochs=20, lr=0.01)),
)
