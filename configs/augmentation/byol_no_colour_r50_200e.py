# BYOL, augmentation ablation (Fig. 5): crop and flip only, the supervised recipe.
_base_ = '../byol_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_flip}}, {{_base_.crop_flip}}]))
