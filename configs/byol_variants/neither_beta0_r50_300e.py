# BYOL's Tab. 5b: no predictor, no target network, no negatives (beta 0).
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None, target='student')
