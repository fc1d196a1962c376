# Drawn scenes in gray for the protocol `segment`, without a download. A study with small networks names this task
# `segment@scenes`. The background is neither learned nor scored, so the score shows whether the features of a patch
# distinguish kinds of shapes.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Scenes', count=400, seed=0),
    test=dict(type='Scenes', count=300, seed=1),
    settings=dict(segment=dict(size=48, ignore=[0], epochs=10, lr=0.01)),
)
