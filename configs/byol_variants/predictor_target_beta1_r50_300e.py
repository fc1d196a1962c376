# BYOL's Tab. 5b: a predictor, a target network, negatives from the batch (beta 1).
_base_ = 'byol_r50_300e.py'
model = dict(head=dict(beta=1.0))
