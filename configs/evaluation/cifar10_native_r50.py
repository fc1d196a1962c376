# CIFAR-10 at its original 32 pixels, for models that were trained at this size.
_base_ = 'cifar10_r50.py'
evaluation = dict(train=dict(views=None), test=dict(views=None))
