# The base of Tab. 5: BYOL, 300 epochs at batch 4096, 0.3 per 256 images, decay 1e-6, m0 0.99, asymmetric views.
_base_ = '../../../configs/architectures/byol_lars_r50_1000e.py'
custom_imports = dict(imports=['projects.byol_variants.info_nce'], allow_failed_imports=False)
model = dict(head=dict(type='InfoNCEHead', alpha=0.1, beta=0.0))
optim_wrapper = dict(optimizer=dict(lr=4.8, weight_decay=1e-6))
default_hooks = dict(momentum=dict(base=0.99))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 4.8, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=300, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=300)
