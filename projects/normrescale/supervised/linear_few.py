# Linear evaluation on 600 images without crops, at a rate that does not diverge on the large features of LARS. To a
# frozen network of 552 steps, crops of 32 pixels look like other images: classifiers that are trained on crops are at chance.
_base_ = '../../../configs/_base_/recipes/linear_shapes_20e.py'
total_batch_size = 100
optim_wrapper = dict(optimizer=dict(lr=0.1))
train_view = [dict(type='RandomFlip', p=0.5)]
default_hooks = dict(checkpoint=dict(interval=20))
