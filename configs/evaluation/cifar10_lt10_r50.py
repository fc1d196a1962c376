# CIFAR-10-LT: the largest class has 10 times as many training images as the smallest.
_base_ = 'cifar10_lt100_r50.py'
evaluation = dict(train=dict(imbalance=10))
