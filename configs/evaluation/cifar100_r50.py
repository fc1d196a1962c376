# CIFAR-100, scored by top-1 accuracy. Images are enlarged to the size of pre-training, as in BYOL's transfer table.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='CIFAR100', root='data/cifar100', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='CIFAR100', root='data/cifar100', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='CIFAR100', root='data/cifar100', split='test', views=[{{_base_.test_view}}]),
)
assumptions = dict(
    linear="linear evaluation on CIFAR-100 uses ImageNet's recipe (learning rate 30, 100 epochs) at 224 pixels; the "
    'paper states neither the recipe nor the image size'
)
