# Tab. 5b: predictor, no target, beta 1.
_base_ = 'byol_r50_300e.py'
model = dict(target='student', head=dict(beta=1.0))
