# SwAV as in its release: two crops of 224 and six of 96 pixels, strong color jitter, 3000 prototypes, LARS with learning
# rate 0.3 per 256 images, batch 4096, 800 epochs. The rate ends at a thousandth of its maximum. The prototypes are frozen
# for one epoch. The warm-up begins at a rate of 1e-6 instead of the release's 0.3, so that it works for any maximum rate.
__method__ = 'swav'
_base_ = ['../architectures/byol_lars_r50_1000e.py', '../_base_/views/methods.py']
model = dict(
    projector=dict(hidden_channels=2048, out_channels=128),
    predictor=None,
    target='stop_gradient',
    key_views=[0, 1],
    head=dict(_delete_=True, type='SwAVHead', channels=128, prototypes=3000),
)
train_dataloader = dict(dataset=dict(views={{_base_.swav_r50}}))
optim_wrapper = dict(optimizer=dict(lr=4.8, weight_decay=1e-6))
param_scheduler = [
    dict(type='WarmUpLR', end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.001, begin=10, convert_to_iter_based=True),
]
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={'head.frozen': dict(start=1, end=0, until=1 / 800, curve='step')},
    ),
]
train_cfg = dict(max_epochs=800)
