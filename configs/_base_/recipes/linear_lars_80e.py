# The linear evaluation of LARS-trained networks: learning rate 0.2 per 256 images at batch 1024, Nesterov momentum, a
# cosine to 0, no weight decay.
_base_ = 'linear_sgd_100e.py'
total_batch_size = 1024
optim_wrapper = dict(optimizer=dict(lr=0.8, nesterov=True))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=80,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=80)
# BYOL's five learning rates per 256 images, multiplied by 4 for the batch of 1024.
sweep = dict(lr=[1.6, 1.2, 0.8, 0.4, 0.2], weight_decay=[0.0])
assumptions = dict(
    linear_lars='the linear evaluation of models trained with LARS has a learning rate of 0.8 at batch 1024, as the '
    'paper prints; the command of its release has 0.2'
)
