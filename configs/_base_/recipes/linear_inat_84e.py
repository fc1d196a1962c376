# MSBReg's linear evaluation on iNaturalist 2018: the same as on Places205, but for 84 epochs.
_base_ = 'linear_places_28e.py'
param_scheduler = [dict(type='MultiStepLR', milestones=[28, 56], gamma=0.1, by_epoch=True)]
train_cfg = dict(max_epochs=84)
