# Linear evaluation on 600 images as they are, at a rate that does not diverge on features as long as LARS makes them. A
# frozen network of 552 steps sees crops of 32 pixels as another kind of image: trained on them, classifiers are at chance.
_base_ = '../../../configs/_base_/recipes/linear_shapes_20e.py'
total_batch_size = 100
optim_wrapper = dict(optimizer=dict(lr=0.1))
train_view = [dict(type='RandomFlip', p=0.5)]
default_hooks = dict(checkpoint=dict(interval=20))
