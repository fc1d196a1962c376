# DINO with a ViT-S/16 for 300 epochs, as in its release: two crops of 224 and eight of 96 pixels, AdamW with learning rate
# 5e-4 per 256 images, batch 1024, stochastic depth of 0.1 in the student. The weight decay rises from 0.04 to 0.4. The
# temperature of the keys rises from 0.04 to 0.07 in 30 epochs. The prototypes are frozen for one epoch. In this config the
# prototypes always have length 1. In the release's run they do not.
_base_ = ['../vit/byol_vit_s16_300e.py', '../_base_/views/methods.py']
model = dict(
    backbone=dict(drop_path_rate=0.1),
    projector=dict(
        type='PrototypeNeck',
        hidden_channels=2048,
        out_channels=256,
        layers=3,
        norm_cfg=None,
        act_cfg=dict(type='GELU'),
        prototypes=65536,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    predictor=None,
    key_views=[0, 1],
    head=dict(_delete_=True, type='DINOHead', prototypes=65536),
)
train_dataloader = dict(dataset=dict(views={{_base_.dino_vit}}))
optim_wrapper = dict(
    optimizer=dict(lr=2e-3, weight_decay=0.04),
    paramwise_cfg=dict(bias_decay_mult=0.0, norm_decay_mult=0.0),
    # The limit applies to the norm of all gradients together. The release clips each tensor separately.
    clip_grad=dict(max_norm=3.0),
)
param_scheduler = [
    dict(type='WarmUpLR', start=1e-6, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, begin=10, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingParamScheduler',
        param_name='weight_decay',
        eta_min_ratio=10,
        convert_to_iter_based=True,
    ),
]
default_hooks = dict(momentum=dict(base=0.996))
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={
            'head.key_temperature': dict(start=0.04, end=0.07, until=0.1),
            'projector.frozen': dict(start=1, end=0, until=1 / 300, curve='step'),
        },
    )
]
