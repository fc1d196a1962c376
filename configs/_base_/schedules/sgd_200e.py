# SGD at batch 1024: 0.03 per 256 images, weight decay on every parameter, warm-up over 10 epochs, cosine to 0.
optim_wrapper = dict(
    type='AutocastOptimWrapper',
    constructor='LARSOptimWrapperConstructor',  # which leaves other optimizers as they are
    optimizer=dict(type='SGD', lr=0.12, momentum=0.9, weight_decay=1e-4),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 0.12, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=10, end=200, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=200)
auto_scale_lr = dict(base_batch_size=1024, enable=False)
