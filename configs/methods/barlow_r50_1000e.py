# Barlow Twins as in its release: BYOL's asymmetric views, a projector of three layers of 8192, LARS at 0.2 per 256
# images, batch 2048; the rate ends at a thousandth. The loss is scaled by 0.024, as in the command of the released checkpoint.
__method__ = 'barlow'
_base_ = '../architectures/byol_lars_r50_1000e.py'
model = dict(
    projector=dict(hidden_channels=8192, out_channels=8192, layers=3, last_bias=False),
    predictor=None,
    target='student',
    symmetric=False,  # the loss is defined on the pair of views, so it has no direction
    head=dict(_delete_=True, type='BarlowTwinsHead', scale=0.024),
)
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(optimizer=dict(lr=1.6, weight_decay=1e-6))
param_scheduler = [
    dict(type='WarmUpLR', end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.001, begin=10, convert_to_iter_based=True),
]
