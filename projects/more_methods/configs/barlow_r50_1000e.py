# Barlow Twins: BYOL's asymmetric views, a projector of three layers of 8192, LARS at 0.2 per 256 images, batch 2048. The rate
# of biases and norms, 0.0048 per 256 in the release, is left at the weights'.
_base_ = '../../../configs/architectures/byol_lars_r50_1000e.py'
custom_imports = dict(imports=['projects.more_methods.barlow'], allow_failed_imports=False)
model = dict(
    projector=dict(hidden_channels=8192, out_channels=8192, layers=3, last_bias=False),
    predictor=None,
    target='student',
    symmetric=False,  # the loss is of the pair, not of a direction
    head=dict(_delete_=True, type='BarlowTwinsHead', scale=0.024),
)
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(optimizer=dict(lr=1.6, weight_decay=1.5e-6))
