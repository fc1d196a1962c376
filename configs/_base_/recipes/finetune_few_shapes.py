# Fine-tuning on few labels in about 15 seconds: 144 steps for 1 200 labeled images.
_base_ = 'finetune_shapes.py'
total_batch_size = 50
train_view = [
    dict(type='RandomResizedCrop', size=32, scale=(0.3, 1.0)),
    dict(type='RandomFlip', p=0.5),
]
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=6,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=6)
default_hooks = dict(checkpoint=dict(interval=6))
