# MaskFeat with a ViT-B/16, by mmpretrain's classes and schedule: predict histograms of oriented gradients of masked blocks.
# AdamW with learning rate 1.6e-3, gradients clipped at 0.02, 300 epochs at batch 2048.
_base_ = 'mae_vit_b16_300e.py'
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.5, 1.0), interpolation='bicubic'),
    dict(type='RandomFlip', p=0.5),
]
model = dict(
    type='mmpretrain.MaskFeat',
    backbone=dict(_delete_=True, type='mmpretrain.MaskFeatViT', arch='b', patch_size=16),
    neck=dict(
        _delete_=True,
        type='mmpretrain.LinearNeck',
        in_channels=768,
        out_channels=108,
        norm_cfg=None,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0),
    ),
    head=dict(
        _delete_=True,
        type='mmpretrain.MIMHead',
        loss=dict(type='mmpretrain.PixelReconstructionLoss', criterion='L2'),
    ),
    target_generator=dict(type='mmpretrain.HOGGenerator', nbins=9, pool=8, gaussian_window=16),
    data_preprocessor=dict(
        _delete_=True,
        type='mmairl.MaskedPreprocessor',
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        masks=dict(
            type='mmpretrain.BEiTMaskGenerator',
            input_size=14,
            num_masking_patches=78,
            min_num_patches=15,
        ),
    ),
    init_cfg=None,
)
train_dataloader = dict(dataset=dict(views=[view]))
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(
    optimizer=dict(lr=1.6e-3, betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=0.02),
    paramwise_cfg=dict(
        _delete_=True,
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(mask_token=dict(decay_mult=0.0)),
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, end=30, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', begin=30, eta_min=1e-6, convert_to_iter_based=True),
]
