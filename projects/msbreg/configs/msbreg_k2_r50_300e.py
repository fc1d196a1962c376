# MSBReg, K = 2: the rate grows with K, 0.15 x 512 / 256 x 2 = 0.6.
_base_ = 'msbreg_k4_r50_300e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.view}}] * 2))
optim_wrapper = dict(optimizer=dict(lr=0.6))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 0.6, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=300, convert_to_iter_based=True),
]
