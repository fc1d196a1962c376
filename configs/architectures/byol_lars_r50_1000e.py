# BYOL as its paper trains it (Tab. 1a): 1000 epochs at batch 4096, 0.2 per 256 images, decay 1.5e-6, m0 0.996,
# the asymmetric pair of views. Crops are resized bilinearly, as everywhere here; BYOL's were bicubic.
_base_ = '../byol_asymmetric_r50_200e.py'
total_batch_size = 4096
optim_wrapper = dict(
    _delete_=True,
    type='LARSOptimWrapper',
    constructor='LARSOptimWrapperConstructor',
    optimizer=dict(type='LARS', lr=3.2, momentum=0.9, weight_decay=1.5e-6, eta=0.001),
)
default_hooks = dict(momentum=dict(base=0.996))
auto_scale_lr = dict(base_batch_size=4096)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 3.2, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=1000, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=1000)
