# BYOL with a ViT-L/16: the config of MoCo v2+ with a regression loss instead of negatives.
_base_ = 'mocov2plus_vit_l16_300e.py'
model = dict(head=dict(_delete_=True, type='RegressionHead'), queue=None)
