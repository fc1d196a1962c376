# Tab. 5b: predictor, no target, beta 0: the target is the student, behind a stop-gradient.
_base_ = 'byol_r50_300e.py'
model = dict(target='stop_gradient')
