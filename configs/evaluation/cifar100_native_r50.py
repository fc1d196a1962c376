# CIFAR-100 at its original 32 pixels, for models that were trained at this size.
_base_ = 'cifar100_r50.py'
evaluation = dict(train=dict(views=None), test=dict(views=None))
