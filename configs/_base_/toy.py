# Synthetic images of 48 pixels and the runtime, without a model, for trying a model on a CPU in less than a minute. The config
# that inherits from this one sets `model`, whose data preprocessor makes the views of a whole batch at once:
# `views=[{{_base_.view}}, {{_base_.view}}]` for two views, or `views=[{{_base_.view}}], single_view=True` for one.
_base_ = 'default_runtime.py'
# A study does not scale this config down.
fixed_size = True
view = [
    dict(type='RandomResizedCrop', size=32, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
]
total_batch_size = 128
auto_scale_lr = dict(enable=False, base_batch_size=128)
train_dataloader = dict(
    num_workers=0,
    drop_last=True,
    sampler=dict(type='ResumableSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='Shapes', split='train', count=1200, size=48),
)
preprocessing = dict(size=32, resize=32)
evaluation = dict(
    train=dict(type='Shapes', split='train', count=1200, size=48),
    test=dict(type='Shapes', split='val', count=600, size=48),
    batch_size=500,
)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05))
train_cfg = dict(by_epoch=True, max_epochs=5)
recipes = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
