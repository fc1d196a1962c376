# S-MoCo v2+, augmentation ablation (Fig. 5): crop and flip only, the supervised recipe.
_base_ = ['../smocov2plus_r50_200e.py', '../_base_/views/byol.py']
train_dataloader = dict(dataset=dict(views=[{{_base_.crop_flip}}, {{_base_.crop_flip}}]))
