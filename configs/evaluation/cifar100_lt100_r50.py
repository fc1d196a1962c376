# CIFAR-100-LT (Cao et al.): the largest class has 100 times as many training images as the smallest. The test set is
# balanced.
_base_ = 'cifar10_lt100_r50.py'
evaluation = dict(
    train=dict(dataset=dict(name='CIFAR100', root='data/cifar100')),
    test=dict(name='CIFAR100', root='data/cifar100'),
)
