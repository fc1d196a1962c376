# BYOL at a batch size of 512 (BYOL's App. G): learning rate 0.4 per 256 images, teacher momentum from 0.9995.
_base_ = 'byol_lars_r50_1000e.py'
total_batch_size = 512
auto_scale_lr = dict(base_batch_size=512)
optim_wrapper = dict(optimizer=dict(lr=0.8))
default_hooks = dict(momentum=dict(base=0.9995))
