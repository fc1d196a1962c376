# Segmentation of drawn scenes: an FCN on a ResNet at stride 8, all layers trained, SyncBN.
_base_ = [
    'mmseg::_base_/models/fcn_r50-d8.py',
    'mmseg::_base_/default_runtime.py',
    '_base_/segmentation.py',
    '_base_/scenes.py',
]

model = dict(
    pretrained=None,
    data_preprocessor=dict(size=(96, 96)),
    backbone={{_base_.plain_resnet}},
    decode_head=dict(
        channels=64, num_convs=1, concat_input=False, num_classes=13, norm_cfg={{_base_.bn_over_processes}}
    ),
    auxiliary_head=None,
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
        pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
    ),
)
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])

total_batch_size = {{_base_.scenes_batch}}
optim_wrapper = {{_base_.scenes_optimizer}}
param_scheduler = {{_base_.scenes_steps}}
train_cfg = {{_base_.scenes_loop}}
val_cfg = dict(type='ValLoop')
custom_hooks = {{_base_.scenes_custom}}
default_hooks = {{_base_.scenes_hooks}}
log_processor = {{_base_.scenes_log}}
randomness = dict(seed=0)
visualizer = {{_base_.scalars_and_images}}
