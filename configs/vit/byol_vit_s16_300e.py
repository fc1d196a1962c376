# BYOL with a ViT-S/16: the config of MoCo v2+ with a regression loss instead of negatives.
_base_ = 'mocov2plus_vit_s16_300e.py'
model = dict(head=dict(_delete_=True, type='RegressionHead'), queue=None)
