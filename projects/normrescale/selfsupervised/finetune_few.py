# Fine-tuning on 1 200 images for 144 steps, in crops of 32 pixels.
_base_ = '../supervised/finetune_few.py'
total_batch_size = 50
train_view = [dict(type='RandomResizedCrop', size=32, scale=(0.3, 1.0)), dict(type='RandomFlip', p=0.5)]
