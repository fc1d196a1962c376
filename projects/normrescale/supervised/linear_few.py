# Linear evaluation on 600 images without crops. Networks trained with LARS have large features. At this learning rate, the
# training of a classifier on these features does not diverge. After only 552 steps of training, the features of a crop of 32
# pixels differ so much from those of the image that a classifier trained on crops is no better than chance.
_base_ = '../../../configs/_base_/recipes/linear_shapes_20e.py'
total_batch_size = 100
optim_wrapper = dict(optimizer=dict(lr=0.1))
train_view = [dict(type='RandomFlip', p=0.5)]
default_hooks = dict(checkpoint=dict(interval=20))
