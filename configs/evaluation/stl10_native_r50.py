# STL-10 at its own 96 pixels, for models trained at that size.
_base_ = 'stl10_r50.py'
evaluation = dict(train=dict(views=None), test=dict(views=None))
