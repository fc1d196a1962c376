# MoCo v1 (He et al., CVPR 2020) under the benchmark's batch and schedule: the root of the ladder.
_base_ = [
    '_base_/models/siamese_r50.py',
    '_base_/datasets/imagenet.py',
    '_base_/schedules/sgd_200e.py',
    '_base_/default_runtime.py',
]
# MoCo v1's views: crop, grey, jitter, flip; no blur.
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0)),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='ColorJitter', p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4),
    dict(type='RandomFlip', p=0.5),
]
train_dataloader = dict(dataset=dict(views=[view, view]))
default_hooks = dict(momentum=dict(base=0.999, schedule='constant'))
