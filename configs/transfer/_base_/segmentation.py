# Settings that all segmentation configs share: mmairl's components for mmseg, SyncBN, batch 16, and a plain ResNet.
custom_imports = dict(
    imports=['mmairl.registry', 'mmairl.transfer.mmcv_ops'],
    allow_failed_imports=False,
)
custom_hooks = [dict(type='mmairl.PreciseBNHook', batches=200)]

# The schedules are those for a batch of 16: 2 images on each of 8 GPUs.
total_batch_size = 16
model_wrapper_cfg = dict(type='mmairl.DistributedModel')

bn_over_processes = dict(type='mmairl.SyncBN', requires_grad=True)
# This backbone has torchvision's layout, with a stem of one 7x7 convolution. mmseg's default, ResNetV1c, has a stem of
# three convolutions, so it could not load mmairl's weights. --cfg-options model.backbone.init_cfg.checkpoint=CKPT sets the
# weights.
plain_resnet = dict(
    _delete_=True,
    type='ResNet',
    depth=50,
    num_stages=4,
    out_indices=(0, 1, 2, 3),
    strides=(1, 2, 1, 1),
    dilations=(1, 1, 2, 4),
    contract_dilation=True,
    norm_cfg=bn_over_processes,
    norm_eval=False,
    style='pytorch',
    init_cfg=dict(type='mmairl.PretrainedBackbone', checkpoint=None),
)
# The same backbone with stride 16. The last stage has dilation instead of a stride, so its output is as large as its
# input.
resnet_os16 = dict(
    plain_resnet, strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2), contract_dilation=False
)
# The same backbone with stride 32, as in classification. It has no `_delete_`, because the configs that use it do not
# inherit a backbone.
resnet_os32 = dict(
    plain_resnet, strides=(1, 2, 2, 2), dilations=(1, 1, 1, 1), contract_dilation=False
)
resnet_os32.pop('_delete_')
saved = dict(
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    checkpoint=dict(
        type='mmairl.ExactCheckpointHook', by_epoch=False, interval=4000, max_keep_ckpts=2
    ),
)
# mmseg's own visualizer has a fixed name, so a second run in the same process would write to the first run's folder. This
# visualizer replaces it.
scalars_and_images = dict(
    _delete_=True,
    type='SegLocalVisualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')],
)
assumptions = dict(
    precise='the statistics of batch norm are recomputed before a model is tested on segmentation or depth'
)
