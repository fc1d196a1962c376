# MoCo v1 (He et al., CVPR 2020) with the batch size and schedule of Huang et al. (ECCV 2022). The other frameworks
# inherit from this config.
__method__ = 'mocov1'
_base_ = [
    '_base_/models/siamese_r50.py',
    '_base_/datasets/imagenet.py',
    '_base_/schedules/sgd_200e.py',
    '_base_/default_runtime.py',
]
# MoCo v1's views have crop, grayscale, color jitter and flip, but no blur.
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0)),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='ColorJitter', p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.4),
    dict(type='RandomFlip', p=0.5),
]
train_dataloader = dict(dataset=dict(views=[view, view]))
default_hooks = dict(momentum=dict(base=0.999, schedule='constant'))
# These are choices that the papers leave open. All configs that inherit from this one share them. A config adds its own
# choices to this dictionary, under new keys.
assumptions = dict(
    split_bn='batch norm normalizes 1024 images in eight groups of 128; in the releases of MoCo, it normalizes the 32 '
    'images on a GPU',
    orientation='images are rotated according to their EXIF orientation; the loaders of the release and of torchvision '
    'ignore it',
    crop='crops are resized bilinearly',
    jitter='color jitter rounds once; PIL, and therefore the release, rounds after each operation',
    blur="blur is a Gaussian with 23 taps at 224 pixels; the release uses PIL's box approximation",
    running_variance='the running variance of batch norm is unbiased; in the synchronized batch norm of the release, '
    'it is biased',
    linear_start='linear classifiers start at N(0, 0.01) and are tested after the last epoch; the release tests after '
    'every 20th epoch and reports the best result',
    probe='the learning rate of the online probe drops after 60 and 80 % of the run; in the release, it drops after '
    'epochs 60 and 80',
)
