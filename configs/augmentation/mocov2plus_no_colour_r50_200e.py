# MoCo v2+ in the augmentation ablation (Fig. 5 of Huang et al. 2022): only crop and flip, as in supervised training.
_base_ = '../mocov2plus_complexaug_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_flip}}, {{_base_.crop_flip}}]))
