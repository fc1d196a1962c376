# VICReg: an expander of three layers in place of the projector, LARS at 0.2 per 256 images, batch 2048, 1000 epochs.
# The views are the benchmark's symmetric ones (Tab. 5), and the rate falls to 0.
_base_ = '../../../configs/byol_lars_r50_200e.py'
custom_imports = dict(imports=['projects.more_methods.vicreg'], allow_failed_imports=False)
model = dict(
    projector=dict(hidden_channels=8192, out_channels=8192, layers=3, last_bias=False),
    predictor=None,
    target='student',
    symmetric=False,  # the loss is of the pair, not of a direction
    head=dict(_delete_=True, type='VICRegHead'),
)
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(optimizer=dict(lr=1.6))
train_cfg = dict(max_epochs=1000)
