# COCO as in MSBReg's Tab. 2: a learning rate of 0.05, which is reached after a linear warm-up of 50 iterations.
_base_ = 'coco_mask_rcnn_fpn_r50_90k.py'
optim_wrapper = dict(optimizer=dict(lr=0.05))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=50),
    dict(
        type='MultiStepLR', by_epoch=False, begin=0, end=90000, milestones=[60000, 80000], gamma=0.1
    ),
]
