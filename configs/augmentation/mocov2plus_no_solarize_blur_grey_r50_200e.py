# MoCo v2+ in the augmentation ablation (Fig. 5 of Huang et al. 2022): without solarization, blur and grayscale.
_base_ = '../mocov2plus_complexaug_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_to_jitter}}, {{_base_.crop_to_jitter}}]))
