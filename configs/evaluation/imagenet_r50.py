# ImageNet. The labels of the official test images are not public, so the official validation set is the test set, and the
# validation images are a part of the training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(type='ImageFolder', root='data/imagenet/train'),
    test=dict(type='ImageFolder', root='data/imagenet/val'),
    # BYOL selects learning rates on this many training images.
    held_out=10_009 / 1_281_167,
)
