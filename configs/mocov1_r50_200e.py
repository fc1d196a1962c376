# MoCo v1 (He et al., CVPR 2020) under the benchmark's batch and schedule: the root of the ladder.
__method__ = 'mocov1'
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
# What the papers leave open and every row shares; a config that makes a choice of its own adds it here, by a name.
assumptions = dict(
    orientation="images are turned as their EXIF block says; the release's loader and torchvision's leave them",
    crop='crops are resized bilinearly',
    jitter='colour jitter rounds once; PIL, and so the release, after each operation',
    blur="blur is a Gaussian, of 23 taps at 224 pixels; the release has PIL's approximation by boxes",
    running_variance="the running variance is unbiased; that of the release's synchronised batch norm is biased",
    linear_start='linear classifiers start at N(0, 0.01), the last is tested; the release tests the best of every 20th epoch',
    probe="the online probe's steps are after 60 and 80 % of the run; the release's after epochs 60 and 80",
)
