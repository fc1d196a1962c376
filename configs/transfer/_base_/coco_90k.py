# COCO instance segmentation: 90 000 iterations at batch 16, with images whose short side has 640 to 800 pixels. A config
# combines these settings with a model of mmdet's 1x configs. The warm-up over 1000 iterations is detectron2's default.
coco_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True, poly2mask=False),
    dict(
        type='RandomChoiceResize',
        scales=[(1333, side) for side in range(640, 801, 32)],
        keep_ratio=True,
    ),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
coco_loader = dict(sampler=dict(type='InfiniteSampler'), dataset=dict(pipeline=coco_pipeline))
coco_loop = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=90000, val_interval=90000)
coco_steps = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(
        type='MultiStepLR', by_epoch=False, begin=0, end=90000, milestones=[60000, 80000], gamma=0.1
    ),
]
# Norm layers have no weight decay, as in detectron2.
coco_optimizer = dict(paramwise_cfg=dict(norm_decay_mult=0.0))
coco_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(
        type='mmairl.ExactCheckpointHook', by_epoch=False, interval=5000, max_keep_ckpts=2
    ),
)
coco_log = dict(by_epoch=False)
assumptions = dict(
    warm_up="the warm-up on COCO takes 1000 iterations, which is detectron2's default; the papers do not state the number"
)
