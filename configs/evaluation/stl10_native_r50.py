# STL-10 at its original 96 pixels, for models that were trained at this size.
_base_ = 'stl10_r50.py'
evaluation = dict(train=dict(views=None), test=dict(views=None))
