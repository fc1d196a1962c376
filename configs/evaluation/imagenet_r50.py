# ImageNet: the labels of the test images are not out, so the test is val and validation a part of train.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(type='ImageFolder', root='data/imagenet/train', views=[{{_base_.test_view}}]),
    test=dict(type='ImageFolder', root='data/imagenet/val', views=[{{_base_.test_view}}]),
    held_out=10_009 / 1_281_167,  # as many training images as BYOL chooses rates by
)
