# Settings that all detection configs share: mmairl's components for mmdet, SyncBN, ImageNet's RGB statistics, batch 16.
custom_imports = dict(
    imports=[
        'mmairl.registry',
        'mmairl.transfer.mmcv_ops',
        'mmairl.transfer.c4_head',
    ],
    allow_failed_imports=False,
)
custom_hooks = [dict(type='mmairl.PreciseBNHook', batches=200)]

# The schedules are those for mmdet's batch of 16: 2 images on each of 8 GPUs.
total_batch_size = 16
model_wrapper_cfg = dict(type='mmairl.DistributedModel')

bn_over_processes = dict(type='mmairl.SyncBN', requires_grad=True)
rgb = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
# The whole backbone is trained, including its batch norms. It has torchvision's layout (`style='pytorch'`), while mmdet's
# C4 models have caffe's. --cfg-options model.backbone.init_cfg.checkpoint=CKPT sets the weights. To load the teacher's
# backbone, also set model.backbone.init_cfg.part=teacher.
trained_backbone = dict(
    frozen_stages=-1,
    norm_cfg=bn_over_processes,
    norm_eval=False,
    style='pytorch',
    init_cfg=dict(type='mmairl.PretrainedBackbone', checkpoint=None),
)
# mmdet's own visualizer has a fixed name, so a second run in the same process would write to the first run's folder. This
# visualizer replaces it.
scalars_and_images = dict(
    _delete_=True,
    type='DetLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')],
)
