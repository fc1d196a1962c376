# Fine-tuning for Shapes and Digits, which takes minutes on a laptop: the usual SGD recipe with weight decay on all
# parameters.
_base_ = 'finetune_20k.py'
total_batch_size = 128
optim_wrapper = dict(optimizer=dict(lr=0.03, nesterov=False))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=5)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=5))
# After so few steps, the running statistics of batch norm are mostly those of pre-training, so they are measured again
# before the test.
custom_hooks = [dict(type='PreciseBNHook', batches=20)]
trials = None
assumptions = dict(finetune_rate=None)
