# Fine-tuning on 600 images for 144 steps.
_base_ = '../../../configs/_base_/recipes/finetune_few_shapes.py'
total_batch_size = 25
train_view = [dict(type='RandomResizedCrop', scale=(0.3, 1.0)), dict(type='RandomFlip', p=0.5)]
