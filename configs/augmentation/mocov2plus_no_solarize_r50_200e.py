# MoCo v2+ in the augmentation ablation (AIRL's Fig. 5): without solarization.
_base_ = '../mocov2plus_complexaug_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_to_blur}}, {{_base_.crop_to_blur}}]))
