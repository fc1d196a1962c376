# BYOL with SGD (Tab. 2 of Huang et al. 2022): MoCo v2+ with more complex augmentation, and with a regression loss
# instead of negatives. As in the paper, both views have the same operations. byol_asymmetric_r50_200e.py has the
# asymmetric pair of views of BYOL's release.
__method__ = 'byol'
_base_ = 'mocov2plus_complexaug_r50_200e.py'
model = dict(head=dict(_delete_=True, type='RegressionHead'), queue=None)
