# BYOL's Tab. 5b: a predictor, no target network, negatives from the batch (beta 1).
_base_ = 'byol_r50_300e.py'
model = dict(target='student', head=dict(beta=1.0))
