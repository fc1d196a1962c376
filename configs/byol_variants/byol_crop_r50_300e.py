# BYOL in the augmentation ablation of BYOL's Fig. 3b: only crop.
_base_ = ['byol_r50_300e.py', '../_base_/views/byol_removed.py']
train_dataloader = dict(dataset=dict(views={{_base_.crop_only}}))
