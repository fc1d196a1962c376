# Tab. 5b: predictor, target, beta 1.
_base_ = 'byol_r50_300e.py'
model = dict(head=dict(beta=1.0))
