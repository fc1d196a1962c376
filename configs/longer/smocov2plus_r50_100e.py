# S-MoCo v2+ for 100 epochs (Tab. 6 and 7).
_base_ = '../smocov2plus_r50_200e.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 0.12, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=100, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=100)
