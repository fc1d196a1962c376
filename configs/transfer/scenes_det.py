# Detection on synthetic scenes: Faster R-CNN with a narrow FPN, all layers trained, SyncBN in the backbone and in the FPN.
_base_ = [
    'mmdet::_base_/models/faster-rcnn_r50_fpn.py',
    'mmdet::_base_/default_runtime.py',
    '_base_/detection.py',
    '_base_/scenes.py',
]

model = dict(
    data_preprocessor={{_base_.rgb}},
    backbone={{_base_.trained_backbone}},
    neck=dict(out_channels=64, num_outs=4, norm_cfg={{_base_.bn_over_processes}}),
    rpn_head=dict(
        in_channels=64, feat_channels=64, anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32])
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=128, num_classes=12),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=50),
        rcnn=dict(sampler=dict(num=32)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=20)),
)
train_dataloader = dict(
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root={{_base_.scenes}},
        metainfo=dict(classes={{_base_.kinds}}),
        ann_file='annotations/train.json',
        data_prefix=dict(img='train/'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackDetInputs'),
        ],
    ),
)
val_dataloader = dict(
    batch_size=20,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root={{_base_.scenes}},
        metainfo=dict(classes={{_base_.kinds}}),
        ann_file='annotations/test.json',
        data_prefix=dict(img='test/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            # At test time, the detector reads the scale that this operation records.
            dict(type='Resize', scale=(96, 96)),
            dict(
                type='PackDetInputs',
                meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
            ),
        ],
    ),
)
val_evaluator = dict(type='CocoMetric', ann_file='data/scenes/annotations/test.json', metric='bbox')

custom_imports = {{_base_.scenes_imports}}
total_batch_size = {{_base_.scenes_batch}}
optim_wrapper = {{_base_.scenes_optimizer}}
param_scheduler = [
    {{_base_.warm_up}},
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=300, milestones=[200, 270], gamma=0.1),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=300, val_interval=300)
val_cfg = dict(type='ValLoop')
custom_hooks = {{_base_.scenes_custom}}
default_hooks = {{_base_.scenes_hooks}}
log_processor = {{_base_.scenes_log}}
randomness = dict(seed=0)
visualizer = {{_base_.scalars_and_images}}
