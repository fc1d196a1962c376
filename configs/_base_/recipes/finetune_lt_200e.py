# Fine-tuning on long-tailed CIFAR (Fig. 4) by Cao et al.'s recipe for these sets (200 epochs, batch 128, rate 0.1 with steps at
# 160 and 180, decay 2e-4) with a tenth of the rate, because the network is pre-trained.
_base_ = 'finetune_20k.py'
total_batch_size = 128
optim_wrapper = dict(optimizer=dict(lr=0.01, weight_decay=2e-4))
param_scheduler = [dict(type='MultiStepLR', milestones=[160, 180], gamma=0.1, by_epoch=True)]
train_cfg = dict(_delete_=True, by_epoch=True, max_epochs=200)
default_hooks = dict(checkpoint=dict(by_epoch=True, interval=20))
custom_hooks = []
trials = None
assumptions = dict(
    finetune_rate=None,
    long_tail="long-tailed sets are fine-tuned with Cao et al.'s recipe at a tenth of its rate; the paper states neither a "
    'recipe nor the ratios, which are 10, 50 and 100',
)
