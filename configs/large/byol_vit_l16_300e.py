# BYOL with a ViT-L/16: MoCo v2+ with one, and a regression in place of negatives.
_base_ = 'mocov2plus_vit_l16_300e.py'
model = dict(head=dict(_delete_=True, type='RegressionHead'), queue=None)
