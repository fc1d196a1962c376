# The demo with a network of half the width, pre-trained without a teacher for as many FLOPs as shapes_half_distilled.py.
_base_ = '../demo/mocov2plus_shapes.py'
epochs = 13
model = dict(
    backbone=dict(stem_channels=8, base_channels=8),
    projector=dict(in_channels=64),
)
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=epochs))
