# BYOL for 300 epochs (Fig. 6).
_base_ = '../byol_r50_200e.py'
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 0.12, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=300, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=300)
default_hooks = dict(checkpoint=dict(interval=50, max_keep_ckpts=-1))  # Fig. 7: every 50 epochs
