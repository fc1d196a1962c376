# BYOL's Tab. 5b: no predictor, a target network, negatives from the batch (beta 1).
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None, head=dict(beta=1.0))
