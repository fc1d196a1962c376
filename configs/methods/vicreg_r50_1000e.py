# VICReg as in its release: BYOL's asymmetric views, an expander of three layers instead of the projector, LARS with
# learning rate 0.2 per 256 images, batch 2048, 1000 epochs. The rate ends at a thousandth of its maximum.
__method__ = 'vicreg'
_base_ = '../architectures/byol_lars_r50_1000e.py'
model = dict(
    projector=dict(hidden_channels=8192, out_channels=8192, layers=3, last_bias=False),
    predictor=None,
    target='student',
    # The loss is symmetric in the two views, so it is computed once per pair and not in two directions.
    symmetric=False,
    head=dict(_delete_=True, type='VICRegHead'),
)
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(optimizer=dict(lr=1.6, weight_decay=1e-6))
param_scheduler = [
    dict(type='WarmUpLR', end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.001, begin=10, convert_to_iter_based=True),
]
