# Synthetic scenes of 96 pixels (projects/normrescale/scenes.py): 400 for training, 300 for testing, batch 8, minutes on
# a core. tools/transfer.py draws them and sets the backbone's depth and width from the checkpoint. A study that tunes the rate
# selects it on two halves of 150 more scenes.
scenes_imports = dict(
    imports=[
        'mmairl.transfer',
        'mmairl.engine.hooks.saving',
        'mmairl.engine.hooks.precise_bn',
        'projects.normrescale.scenes',
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
    paramwise_cfg=dict(norm_decay_mult=0.0),  # as in detectron2
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
