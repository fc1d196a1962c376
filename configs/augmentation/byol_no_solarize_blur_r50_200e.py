# BYOL in the augmentation ablation (Fig. 5 of Huang et al. 2022): without solarization and blur.
_base_ = '../byol_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_to_grey}}, {{_base_.crop_to_grey}}]))
