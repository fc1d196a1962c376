# Step 4 from MoCo v2 to BYOL (AIRL's Fig. 2, fifth bar; Fig. 1c): a symmetric loss. The result is MoCo v2+.
__method__ = 'mocov2plus'
_base_ = 'mocov2_syncbn_predictor_momentum_r50_200e.py'
model = dict(symmetric=True)
