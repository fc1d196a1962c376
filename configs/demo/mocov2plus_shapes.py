# The config of `mmairl demo`. A run takes minutes on a laptop: from the same number of images, small batches learn more.
_base_ = 'mocov2plus_shapes_30e.py'
total_batch_size = 128
epochs = 18
train_cfg = dict(max_epochs=epochs)
auto_scale_lr = dict(base_batch_size=128)
default_hooks = dict(checkpoint=dict(interval=epochs))
