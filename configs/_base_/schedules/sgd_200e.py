# SGD at batch 1024: learning rate 0.03 per 256 images, weight decay on every parameter. The schedule of the rate can be used
# with every optimizer and every number of epochs: warm-up over 10 epochs from 1e-6, then a cosine to 0 at the end of the run.
optim_wrapper = dict(
    type='AutocastOptimWrapper',
    optimizer=dict(type='SGD', lr=0.12, momentum=0.9, weight_decay=1e-4),
)
param_scheduler = [
    dict(type='WarmUpLR', start=1e-6, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=10, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=200)
auto_scale_lr = dict(base_batch_size=1024, enable=False)
