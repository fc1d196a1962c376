# Synthetic scenes of 96 pixels (projects/papers/scenes.py): 400 for training and 300 for testing, batch 8, minutes on
# one CPU core. tools/transfer.py draws the scenes, and sets the depth and width of the backbone as in the checkpoint. A
# study that tunes the learning rate uses 300 more scenes: one half selects the rate, and the other half scores it.
scenes_imports = dict(
    imports=[
        'mmairl.registry',
        'mmairl.transfer.mmcv_ops',
        'projects.papers.scenes',
    ],
    allow_failed_imports=False,
)
drawn = dict(type='drawn_scenes')
scenes = 'data/scenes/'
kinds = (
    'disc',
    'ring',
    'square',
    'frame',
    'triangle',
    'plus',
    'star',
    'crescent',
    'bar',
    'ell',
    'heart',
    'arrow',
)
labels = ('background', *kinds)
scenes_batch = 8
scenes_optimizer = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=1e-4),
    # Norm layers have no weight decay, as in detectron2.
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
warm_up = dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=20)
scenes_custom = [dict(type='mmairl.PreciseBNHook', batches=30)]
scenes_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmairl.ExactCheckpointHook', by_epoch=False, interval=100, max_keep_ckpts=1
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=None,
)
scenes_log = dict(by_epoch=False)
