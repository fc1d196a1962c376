# BYOL's recipe for fine-tuning on the data sets of its transfer table: 20 000 steps of batch 256 with Nesterov momentum.
# Learning rate and weight decay are selected from a grid on validation images. As in BYOL, the weight decays of the grid
# are divided by the learning rate. The network with the best pair is then trained on training and validation images. The
# momentum of batch norm depends on the number of steps per epoch.
_base_ = '../default_runtime.py'
model = dict(type='Classifier', backbone=dict(norm_cfg=dict(type='SyncBN'), norm_eval=False))
train_view = [dict(type='RandomResizedCrop'), dict(type='RandomFlip', p=0.5)]
total_batch_size = 256
optim_wrapper = dict(
    type='AutocastOptimWrapper',
    optimizer=dict(type='SGD', lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
)
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=0, end=20000)]
train_cfg = dict(by_epoch=False, max_iters=20000)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=2000, max_keep_ckpts=1))
custom_hooks = [dict(type='EpochBatchNormHook')]
assumptions = dict(
    finetune_rate='the learning rate of fine-tuning follows a cosine; BYOL states no schedule'
)
trials = [
    {'optim_wrapper.optimizer': dict(lr=rate, weight_decay=decay / rate)}
    for rate in (1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1)
    for decay in (0.0, 1e-6, 10**-5.5, 1e-5, 10**-4.5, 1e-4, 10**-3.5, 1e-3)
]
