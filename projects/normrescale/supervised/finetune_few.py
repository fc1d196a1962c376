# Fine-tuning on 600 images for 144 steps.
_base_ = '../../../configs/_base_/recipes/finetune_shapes.py'
total_batch_size = 25
param_scheduler = [
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=0, end=6, convert_to_iter_based=True)
]
train_cfg = dict(max_epochs=6)
default_hooks = dict(checkpoint=dict(interval=6))

train_view = [dict(type='RandomResizedCrop', scale=(0.3, 1.0)), dict(type='RandomFlip', p=0.5)]
