# MoCo v2+ with LARS for 100 epochs (Tab. 6 and 7).
_base_ = '../mocov2plus_lars_r50_200e.py'
# LARS at 100 epochs: 0.45 per 256 images (the reference).
optim_wrapper = dict(optimizer=dict(lr=1.8))
train_cfg = dict(max_epochs=100)
