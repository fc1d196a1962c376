# MoCo v2+, augmentation ablation (Fig. 5): crop and flip only, the supervised recipe.
_base_ = '../mocov2plus_complexaug_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_flip}}, {{_base_.crop_flip}}]))
