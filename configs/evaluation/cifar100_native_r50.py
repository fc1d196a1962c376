# CIFAR-100 at its own 32 pixels, for models trained at that size.
_base_ = 'cifar100_r50.py'
evaluation = dict(train=dict(views=None), val=dict(views=None), test=dict(views=None))
