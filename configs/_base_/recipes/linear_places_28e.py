# MSBReg's linear evaluation on Places205: 28 epochs, weight decay 1e-4, and a learning rate of 0.2, which is divided by 10
# after one third and after two thirds of the epochs.
_base_ = 'linear_sgd_100e.py'
optim_wrapper = dict(optimizer=dict(lr=0.2, weight_decay=1e-4))
param_scheduler = [dict(type='MultiStepLR', milestones=[9, 19], gamma=0.1, by_epoch=True)]
train_cfg = dict(max_epochs=28)
