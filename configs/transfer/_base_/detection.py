# Shared by the detection runs: our components for mmdet, SyncBN, ImageNet's RGB statistics, batch 16.
custom_imports = dict(
    imports=[
        'mmairl.engine.hooks.saving',
        'mmairl.transfer.c4_head',
        'mmairl.engine.hooks.precise_bn',
        'mmairl.transfer.voc_metric',
    ],
    allow_failed_imports=False,
)
custom_hooks = [dict(type='mmairl.PreciseBNHook', batches=200)]

# The schedules belong to this batch: mmdet's 2 images on each of 8 GPUs.
total_batch_size = 16
model_wrapper_cfg = dict(type='mmairl.DistributedModel')

bn_over_processes = dict(type='mmairl.SyncBN', requires_grad=True)
rgb = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
# The whole backbone is trained, norms included, from weights in torchvision's layout; mmdet's C4 models use caffe's.
# --cfg-options model.backbone.init_cfg.checkpoint=CKPT sets the weights; add `part='teacher'` for the teacher's.
trained_backbone = dict(
    frozen_stages=-1,
    norm_cfg=bn_over_processes,
    norm_eval=False,
    style='pytorch',
    init_cfg=dict(type='mmairl.PretrainedBackbone', checkpoint=None),
)
# mmdet's visualizer has a fixed name, so a second run in one process would write to the first run's folder.
scalars_and_images = dict(
    _delete_=True,
    type='DetLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')],
)
