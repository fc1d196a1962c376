# Synthetic scenes of known depth, for the protocol `depth_probe`.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0, depth=True),
    test=dict(type='Scenes', count=300, seed=1, depth=True),
    settings=dict(depth_probe=dict(layers=[0, 1, 2, 3], size=96, epochs=10, lr=0.01)),
)
