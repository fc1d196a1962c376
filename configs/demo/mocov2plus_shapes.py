# MoCo v2+ on Shapes in a few minutes on a laptop: the full-size network's recipe with everything made small.
_base_ = [
    '../_base_/models/siamese_r50.py',
    '../_base_/datasets/shapes.py',
    '../_base_/default_runtime.py',
]
model = dict(
    backbone=dict(depth=18, stem_channels=16, base_channels=16),
    projector=dict(in_channels=128, hidden_channels=256, out_channels=64),
    predictor=dict(in_channels=64, hidden_channels=256, out_channels=64),
    queue=dict(length=4096),
    data_preprocessor=dict(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), views=[{{_base_.view}}, {{_base_.view}}]),
)
epochs = 30
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=1e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=2, end=epochs, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs)
auto_scale_lr = dict(base_batch_size=256, enable=False)
# A short run starts from a faster teacher than a long one.
default_hooks = dict(momentum=dict(base=0.97), checkpoint=dict(interval=epochs))
log_level = 'WARNING'
