# BYOL's Tab. 5b: a predictor, no target network, no negatives (beta 0). The targets are the student's own projections,
# without gradient.
_base_ = 'byol_r50_300e.py'
model = dict(target='stop_gradient')
