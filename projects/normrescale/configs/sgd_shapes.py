# MoCo v2+ on Shapes with SGD. A run of 2 760 steps is a hundredth of the paper's; the decay is as much larger, so that the
# product of rate, decay and steps, which is how far L2 brings a norm down, is the paper's 1.5.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
epochs = 60
optim_wrapper = dict(optimizer=dict(lr=0.3, weight_decay=3.6e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=2, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=20, max_keep_ckpts=-1))
