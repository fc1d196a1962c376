# MoCo v2+ with a ViT-S/16. AdamW and its settings are MoCo v3's: learning rate 1.5e-4 per 256 images, weight decay 0.1, 40
# epochs of warm-up. Except for the 300 epochs, everything else is as in mocov2plus_complexaug_r50_200e.py.
_base_ = '../mocov2plus_complexaug_r50_200e.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpretrain.VisionTransformer',
        arch='deit-small',
        img_size=224,
        patch_size=16,
        out_type='cls_token',
    ),
    projector=dict(in_channels=384),
)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=6e-4, weight_decay=0.1))
param_scheduler = [
    dict(type='WarmUpLR', start=1e-6, end=40, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=40, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=300)
