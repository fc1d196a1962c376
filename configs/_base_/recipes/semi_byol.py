# Fine-tuning with few labels by BYOL's protocol: the whole network is trained, and the learning rate and the number of
# epochs are selected from a grid on held-out images.
_base_ = 'semi_10pct.py'
optim_wrapper = dict(optimizer=dict(lr=0.1), paramwise_cfg=None)
trials = [
    {
        'optim_wrapper.optimizer.lr': rate,
        'train_cfg.max_epochs': epochs,
        'param_scheduler.0.end': epochs,
    }
    for rate in (0.005, 0.01, 0.02, 0.05, 0.1)
    for epochs in (30, 50)
]
assumptions = dict(
    semi='with few labels, the learning rate follows a cosine; BYOL states no schedule',
    semi_rate="with few labels, the learning rates that BYOL prints are used at batch 1024 without scaling; in BYOL's "
    'linear evaluation, learning rates are per 256 images',
)
