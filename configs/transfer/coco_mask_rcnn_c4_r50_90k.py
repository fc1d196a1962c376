# COCO: Mask R-CNN, ResNet50-C4, all layers trained, SyncBN, an extra norm after the shared head.
_base_ = [
    'mmdet::mask_rcnn/mask-rcnn_r50-caffe-c4_1x_coco.py',
    '_base_/c4.py',
    '_base_/coco_90k.py',
]

model = {{_base_.c4}}

train_dataloader = {{_base_.coco_loader}}
train_cfg = {{_base_.coco_loop}}
param_scheduler = {{_base_.coco_steps}}
optim_wrapper = {{_base_.coco_optimizer}}
default_hooks = {{_base_.coco_hooks}}
log_processor = {{_base_.coco_log}}
visualizer = {{_base_.scalars_and_images}}
