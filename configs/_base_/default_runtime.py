default_scope = 'mmairl'
# tools/train.py of other OpenMMLab projects and `mim train` use this runner.
runner_type = 'mmairl.Runner'

# Speed settings that change nothing but rounding. mmairl/engine/speed.py explains them. `--amp` adds mixed precision.
fast = dict(precision='tf32', channels_last=True, fused=True)

default_hooks = dict(
    runtime_info=dict(type='AsyncRuntimeInfoHook', interval=50),
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='ExactCheckpointHook', interval=10, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    health=dict(type='HealthHook', interval=50),
    preemption=dict(type='PreemptionHook'),
    momentum=dict(type='MomentumHook', base=0.99, schedule='cosine'),
    queue=dict(type='QueueHook'),
    progress=dict(type='ProgressHook'),
)
env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # This timeout is longer than that of the data loader, so that the loader's error is raised first.
    dist_cfg=dict(backend='nccl', timeout=1800),
)
model_wrapper_cfg = dict(type='mmairl.DistributedModel')
# Each process uses its own random numbers for augmentation. All processes start from the weights of the first process.
randomness = dict(seed=None, diff_rank_seed=True)

visualizer = dict(
    type='Visualizer',
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')],
)
log_level = 'INFO'
load_from = None
resume = False
