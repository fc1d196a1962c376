# MoCo v2+ on Shapes: the full-size recipe with a smaller network, queue and schedule.
_base_ = '../mocov2plus_r50_200e.py'
# A study does not scale this config down. The scale `demo` of a study is meant for full-size configs.
fixed_size = True
# With the views of the full-size recipe, a short run learns to recognize images by their colors and backgrounds. Here,
# views are gray, and crops are so small that they rarely overlap, so two views have only the kind of shape in common.
view = [
    dict(type='RandomResizedCrop', size=32, scale=(0.2, 0.6)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=1.0),
]
model = dict(
    backbone=dict(depth=18, stem_channels=16, base_channels=16),
    projector=dict(in_channels=128, hidden_channels=256, out_channels=64),
    predictor=dict(in_channels=64, hidden_channels=256, out_channels=64),
    queue=dict(length=1024),
    # Views are computed for the whole batch at once, in the training process.
    data_preprocessor=dict(
        mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), views=[view, view], channels_last=True
    ),
)
train_dataloader = dict(
    _delete_=True,
    num_workers=0,
    drop_last=True,
    sampler=dict(type='ResumableSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='Shapes', split='train', count=12000, size=48),
)
# Images are evaluated at their full size.
preprocessing = dict(size=48, resize=48)
evaluation = dict(
    _delete_=True,
    train=dict(type='Shapes', split='train', count=12000, size=48),
    test=dict(type='Shapes', split='val', count=2400, size=48),
    batch_size=500,
)
total_batch_size = 256
epochs = 30
optim_wrapper = dict(optimizer=dict(lr=0.3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=2, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=epochs)
auto_scale_lr = dict(base_batch_size=256)
# In a short run, the teacher must follow the student faster, so its momentum starts lower.
default_hooks = dict(momentum=dict(base=0.9), checkpoint=dict(interval=epochs))
log_level = 'WARNING'
recipes = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
