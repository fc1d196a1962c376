# Tab. 5b: no predictor, target, beta 0: the mean teacher without labels.
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None)
