# Segmentation of synthetic scenes: an FCN head on all four stages, all layers trained, SyncBN. 90 % of the pixels are
# background. The background has a weight of 0.1 in the loss, because otherwise a short run predicts background only.
_base_ = [
    'mmseg::_base_/default_runtime.py',
    '_base_/segmentation.py',
    '_base_/scenes.py',
]

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        seg_pad_val=255,
        size=(96, 96),
    ),
    backbone={{_base_.resnet_os32}},
    decode_head=dict(
        type='FCNHead',
        in_index=(0, 1, 2, 3),
        input_transform='resize_concat',
        channels=64,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.0,
        num_classes=13,
        norm_cfg={{_base_.bn_over_processes}},
        loss_decode=dict(type='CrossEntropyLoss', class_weight=[0.1] + [1.0] * 12),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
train_dataloader = dict(
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root={{_base_.scenes}},
        img_suffix='.png',
        metainfo=dict(classes={{_base_.labels}}),
        data_prefix=dict(img_path='train', seg_map_path='masks/train'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=20,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root={{_base_.scenes}},
        img_suffix='.png',
        metainfo=dict(classes={{_base_.labels}}),
        data_prefix=dict(img_path='test', seg_map_path='masks/test'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])

custom_imports = {{_base_.scenes_imports}}
total_batch_size = {{_base_.scenes_batch}}
optim_wrapper = {{_base_.scenes_optimizer}}
param_scheduler = [
    {{_base_.warm_up}},
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=600, milestones=[400, 540], gamma=0.1),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=600, val_interval=600)
val_cfg = dict(type='ValLoop')
custom_hooks = {{_base_.scenes_custom}}
default_hooks = {{_base_.scenes_hooks}}
log_processor = {{_base_.scenes_log}}
randomness = dict(seed=0)
visualizer = {{_base_.scalars_and_images}}
