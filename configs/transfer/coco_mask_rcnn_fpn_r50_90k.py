# COCO: Mask R-CNN with an FPN on a ResNet-50, all layers trained. The backbone, the FPN, the box head (4conv1fc) and the
# mask head have SyncBN.
_base_ = [
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py',
    '_base_/detection.py',
    '_base_/coco_90k.py',
]

model = dict(
    data_preprocessor={{_base_.rgb}},
    backbone={{_base_.trained_backbone}},
    neck=dict(norm_cfg={{_base_.bn_over_processes}}),
    roi_head=dict(
        bbox_head=dict(
            type='Shared4Conv1FCBBoxHead',
            conv_out_channels=256,
            norm_cfg={{_base_.bn_over_processes}},
        ),
        mask_head=dict(norm_cfg={{_base_.bn_over_processes}}),
    ),
)

train_dataloader = {{_base_.coco_loader}}
train_cfg = {{_base_.coco_loop}}
param_scheduler = {{_base_.coco_steps}}
optim_wrapper = {{_base_.coco_optimizer}}
default_hooks = {{_base_.coco_hooks}}
log_processor = {{_base_.coco_log}}
visualizer = {{_base_.scalars_and_images}}
