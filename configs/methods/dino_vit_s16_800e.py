# DINO with a ViT-S/16 in the setting of iBOT's release: two crops of 224 and ten of 96 pixels, 8192 prototypes, 800 epochs,
# gradients of each tensor clipped separately, and no weight decay of vectors. The following configs go from here to
# DINOv2, one factor at a time: ibot_vit_s16_800e.py, ibot_separate_*, ibot_sinkhorn_*, ibot_koleo_* and dinov2_vit_s16_800e.py.
_base_ = 'dino_vit_s16_300e.py'
epochs = 800
model = dict(
    # The ViT returns its tokens, and the class token is the pooled feature.
    backbone=dict(out_type='raw'),
    projector=dict(prototypes=8192),
    head=dict(prototypes=8192),
)
train_dataloader = dict(dataset=dict(views={{_base_.ibot}}))
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(_delete_=True, layer_decay=1.0),
    clip_grad=dict(max_norm=3.0, per='tensor'),
)
train_cfg = dict(max_epochs=epochs)
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={
            'head.key_temperature': dict(start=0.04, end=0.07, until=30 / epochs),
            'projector.frozen': dict(start=1, end=0, until=1 / epochs, curve='step'),
        },
    )
]
