# CIFAR-100-LT: like CIFAR-10-LT, but with the images of CIFAR-100.
_base_ = 'cifar10_lt100_r50.py'
evaluation = dict(
    train=dict(dataset=dict(type='CIFAR100', root='data/cifar100')),
    test=dict(type='CIFAR100', root='data/cifar100'),
)
