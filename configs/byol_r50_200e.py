# BYOL with SGD (Tab. 2): MoCo v2+ with complex augmentation, and a regression to the teacher in place of negatives.
# As in the paper, both views use one recipe; byol_asymmetric_r50_200e.py has the pair of BYOL and of the release.
__method__ = 'byol'
_base_ = 'mocov2plus_complexaug_r50_200e.py'
model = dict(head=dict(_delete_=True, type='RegressionHead'), queue=None)
