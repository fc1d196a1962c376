# Linear evaluation for Shapes and Digits, which takes minutes on a laptop.
_base_ = 'linear_sgd_100e.py'
optim_wrapper = dict(optimizer=dict(lr=3.0))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=20,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=20)
default_hooks = dict(health=None)  # a frozen network cannot collapse
