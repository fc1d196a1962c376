# COCO: Mask R-CNN with a C4 head on a ResNet-50, all layers trained, SyncBN, and an extra batch norm after the shared head.
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
