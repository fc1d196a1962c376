# Fine-tuning on long-tailed CIFAR (Fig. 4 of Huang et al. 2022) by the recipe of Cao et al. for these data sets: 200
# epochs, batch 128, weight decay 2e-4, and a learning rate that drops after 160 and 180 epochs. The rate is 0.01
# instead of their 0.1, because the network is pre-trained.
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
    long_tail="long-tailed sets are fine-tuned with Cao et al.'s recipe at a tenth of its learning rate, and their "
    'largest class has 10, 50 or 100 times the images of the smallest; the paper states neither the recipe nor these '
    'ratios',
)
