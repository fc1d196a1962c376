# NYUv2 depth as in BYOL's Tab. 4b: features of conv5, four up-projection blocks, and the reverse Huber loss. Images of 640
# x 480 pixels are halved, and their center is cropped to 304 x 228.
_base_ = [
    'mmseg::_base_/datasets/nyu.py',
    'mmseg::_base_/default_runtime.py',
    '_base_/segmentation.py',
]

custom_imports = dict(
    imports=['mmairl.registry', 'mmairl.transfer.mmcv_ops', 'projects.papers.depth'],
    allow_failed_imports=False,
)
keys = (
    'img_path',
    'depth_map_path',
    'ori_shape',
    'img_shape',
    'pad_shape',
    'scale_factor',
    'category_id',
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadDepthAnnotation', depth_rescale_factor=1e-3),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='mmairl.NYUAugmentation', crop=(304, 228)),
    dict(type='PackSegInputs', meta_keys=keys),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(320, 240), keep_ratio=True),
    dict(type='LoadDepthAnnotation', depth_rescale_factor=1e-3),
    dict(type='PackSegInputs', meta_keys=keys),
]
model = dict(
    type='DepthEstimator',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=0,
        size=(228, 304),
    ),
    backbone={{_base_.resnet_os32}},
    decode_head=dict(
        type='mmairl.UpProjectionHead',
        in_channels=2048,
        channels=(512, 256, 128, 64),
        norm_cfg={{_base_.bn_over_processes}},
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
total_batch_size = 256
train_dataloader = dict(batch_size=32, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(_delete_=True, type='DepthMetric', min_depth_eval=0.001, max_depth_eval=10.0)
test_evaluator = val_evaluator
optim_wrapper = dict(
    type='OptimWrapper', optimizer=dict(type='SGD', lr=0.16, momentum=0.9, weight_decay=5e-4)
)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=7500, milestones=[5250, 6750], gamma=0.1)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=7500, val_interval=7500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = {{_base_.saved}}
visualizer = {{_base_.scalars_and_images}}
assumptions = dict(
    steps='the learning rate on NYUv2 drops after 70 and 90 % of the iterations, as in segmentation; BYOL states no '
    'schedule'
)
