# BYOL's Tab. 5b: no predictor, a target network, no negatives (beta 0). This is a mean teacher without labels.
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None)
