# VOC07+12 detection: Faster R-CNN with a C4 head on a ResNet-50, all layers trained, 24 000 iterations on trainval2007 and
# trainval2012, tested on test2007. Short sides of 480 to 800 pixels and the warm-up over 100 iterations are those of
# mmdet's config. Huang et al. 2022 use detectron2, which trains on 'difficult' objects. mmdet does not.
_base_ = ['mmdet::pascal_voc/faster-rcnn_r50-caffe-c4_ms-18k_voc0712.py', '_base_/c4.py']

model = {{_base_.c4}}

train_cfg = dict(max_iters=24000, val_interval=24000)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=100),
    dict(
        type='MultiStepLR', by_epoch=False, begin=0, end=24000, milestones=[18000, 22000], gamma=0.1
    ),
]
# Norm layers have no weight decay, as in detectron2.
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0))
# Metrics are logged by iteration. By epoch, they would all be logged at epoch 0.
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(type='mmairl.ExactCheckpointHook', interval=3000, max_keep_ckpts=2),
)

# VOC2007's 11-point AP at COCO's IoU thresholds, as in detectron2.
val_evaluator = dict(
    _delete_=True,
    type='VOCMetric',
    eval_mode='11points',
    iou_thrs=[0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
)
test_evaluator = val_evaluator
visualizer = {{_base_.scalars_and_images}}
assumptions = dict(
    difficult="VOC's 'difficult' objects are excluded from training, as in mmdet; detectron2 includes them"
)
