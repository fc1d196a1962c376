# SimMIM with a Swin-B on images of 192 pixels, by mmpretrain's classes and schedule: 60 % of units of 32 pixels are masked.
# AdamW with learning rate 2e-4 per 512 images, 100 epochs at batch 2048.
_base_ = 'mae_vit_b16_300e.py'
view = [
    dict(type='RandomResizedCrop', size=192, scale=(0.67, 1.0)),
    dict(type='RandomFlip', p=0.5),
]
model = dict(
    type='mmpretrain.SimMIM',
    backbone=dict(
        _delete_=True,
        type='mmpretrain.SimMIMSwinTransformer',
        arch='base',
        img_size=192,
        stage_cfgs=dict(block_cfgs=dict(window_size=6)),
    ),
    neck=dict(
        _delete_=True, type='mmpretrain.SimMIMLinearDecoder', in_channels=1024, encoder_stride=32
    ),
    head=dict(
        _delete_=True,
        type='mmpretrain.SimMIMHead',
        patch_size=4,
        loss=dict(type='mmpretrain.PixelReconstructionLoss', criterion='L1', channel=3),
    ),
    data_preprocessor=dict(
        _delete_=True,
        type='mmairl.MaskedPreprocessor',
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        masks=dict(
            type='mmpretrain.SimMIMMaskGenerator',
            input_size=192,
            mask_patch_size=32,
            model_patch_size=4,
            mask_ratio=0.6,
        ),
    ),
    init_cfg=None,
)
train_dataloader = dict(dataset=dict(views=[view]))
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(
    optimizer=dict(lr=8e-4, betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        _delete_=True,
        bias_decay_mult=0.0,
        norm_decay_mult=0.0,
        custom_keys=dict(
            absolute_pos_embed=dict(decay_mult=0.0),
            relative_position_bias_table=dict(decay_mult=0.0),
        ),
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.005, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', begin=10, eta_min=4e-5, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=100)
