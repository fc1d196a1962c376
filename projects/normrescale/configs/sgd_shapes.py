# MoCo v2+ on Shapes with SGD for twice the demo's time. The run has a hundredth of the paper's steps; for L2 to hold norms
# below their start in so few, the decay is five times the paper's (at 36 times, the last stages die).
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
epochs = 60
optim_wrapper = dict(optimizer=dict(lr=0.3, weight_decay=5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=2, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=20, max_keep_ckpts=-1))
