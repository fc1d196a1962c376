# MoCo v3 with a ViT-S/16: BYOL's pair of views, AdamW with learning rate 1.5e-4 per 256 images, batch 4096. The patch
# embedding is frozen.
_base_ = '../vit/byol_vit_s16_300e.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='mmpretrain.MoCoV3ViT',
        arch='mocov3-small',
        img_size=224,
        patch_size=16,
        stop_grad_conv1=True,
        out_type='cls_token',
    ),
    projector=dict(layers=3, last_norm=dict(type='SyncBN', affine=False), last_bias=False),
    predictor=dict(last_norm=dict(type='SyncBN', affine=False), last_bias=False),
    head=dict(_delete_=True, type='BatchContrastiveHead', temperature=0.2),
)
train_dataloader = dict(dataset=dict(views=[{{_base_.first_view}}, {{_base_.second_view}}]))
total_batch_size = 4096
auto_scale_lr = dict(base_batch_size=4096)
optim_wrapper = dict(optimizer=dict(lr=2.4e-3))
