# Linear evaluation on 600 images. The learning rate is so low that the classifier's training does not diverge even on networks
# trained with LARS, whose features are large. The images are not cropped: after only 552 steps of pre-training, the features of
# a crop of 32 pixels differ so much from those of the image that a classifier trained on crops is no better than chance.
_base_ = '../../../configs/_base_/recipes/linear_shapes_20e.py'
total_batch_size = 100
optim_wrapper = dict(optimizer=dict(lr=0.1))
train_view = [dict(type='RandomFlip', p=0.5)]
default_hooks = dict(checkpoint=dict(interval=20))
