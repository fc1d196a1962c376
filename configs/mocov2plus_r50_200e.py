# + symmetric loss = MoCo v2+ (Fig. 1c; Fig. 2, fifth bar).
__method__ = 'mocov2plus'
_base_ = 'mocov2_syncbn_predictor_momentum_r50_200e.py'
model = dict(symmetric=True)
