# ImageNet: the labels of the test images are not public, so val is the test set and validation is a part of train.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(type='ImageFolder', root='data/imagenet/train', views=[{{_base_.test_view}}]),
    test=dict(type='ImageFolder', root='data/imagenet/val', views=[{{_base_.test_view}}]),
    held_out=10_009 / 1_281_167,  # the number of training images on which BYOL selects rates
)
