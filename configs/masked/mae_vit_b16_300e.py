# MAE with a ViT-B/16, by mmpretrain's classes and schedule: 75 % of the patches are masked, AdamW with learning rate 1.5e-4
# per 256 images, 300 epochs at batch 4096.
_base_ = ['../_base_/datasets/imagenet.py', '../_base_/default_runtime.py']
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0), interpolation='bicubic'),
    dict(type='RandomFlip', p=0.5),
]
model = dict(
    type='mmpretrain.MAE',
    backbone=dict(type='mmpretrain.MAEViT', arch='b', patch_size=16, mask_ratio=0.75),
    neck=dict(
        type='mmpretrain.MAEPretrainDecoder',
        patch_size=16,
        in_chans=3,
        embed_dim=768,
        decoder_embed_dim=512,
        decoder_depth=8,
        decoder_num_heads=16,
        mlp_ratio=4.0,
    ),
    head=dict(
        type='mmpretrain.MAEPretrainHead',
        norm_pix=True,
        patch_size=16,
        loss=dict(type='mmpretrain.PixelReconstructionLoss', criterion='L2'),
    ),
    data_preprocessor=dict(
        type='mmairl.ViewPreprocessor',
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        single_view=True,
    ),
    init_cfg=[
        dict(type='Xavier', layer='Linear', distribution='uniform'),
        dict(type='Constant', layer='LayerNorm', val=1.0, bias=0.0),
    ],
)
train_dataloader = dict(dataset=dict(views=[view]))
total_batch_size = 4096
auto_scale_lr = dict(base_batch_size=4096)
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=2.4e-3, betas=(0.9, 0.95), weight_decay=0.05),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0),
            mask_token=dict(decay_mult=0.0),
            cls_token=dict(decay_mult=0.0),
        ),
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.0001, end=40, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', begin=40, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=300)
