# Tab. 5b: target, beta 1, no predictor.
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None, head=dict(beta=1.0))
