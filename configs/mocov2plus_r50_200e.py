# Step 4 from MoCo v2 to BYOL (Fig. 2 of Huang et al. 2022, fifth point; Fig. 1c): a symmetric loss. The result is MoCo
# v2+.
__method__ = 'mocov2plus'
_base_ = 'mocov2_syncbn_predictor_momentum_r50_200e.py'
model = dict(symmetric=True)
