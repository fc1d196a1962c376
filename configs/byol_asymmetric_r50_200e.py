# BYOL with the asymmetric pair of views of BYOL's own paper.
__method__ = 'byol_asymmetric'
_base_ = 'byol_r50_200e.py'
train_dataloader = dict(dataset=dict(views=[{{_base_.first_view}}, {{_base_.second_view}}]))
assumptions = dict(views=None)
