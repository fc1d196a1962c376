# BYOL's Tab. 5b: no predictor, no target network, negatives from the batch (beta 1). This is SimCLR.
__method__ = 'simclr'
_base_ = 'byol_r50_300e.py'
model = dict(predictor=None, target='student', head=dict(beta=1.0))
