# MoCo v2+ for 500 epochs (AIRL's Fig. 6).
_base_ = '../mocov2plus_r50_200e.py'
train_cfg = dict(max_epochs=500)
