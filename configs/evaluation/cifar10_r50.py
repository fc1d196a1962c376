# CIFAR-10, scored by top-1 accuracy. Images are enlarged to the size of pre-training, as in BYOL's transfer table.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='CIFAR10', root='data/cifar10', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='CIFAR10', root='data/cifar10', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='CIFAR10', root='data/cifar10', split='test', views=[{{_base_.test_view}}]),
)
