# MoCo v2+ with LARS for 100 epochs. The paper has no such row, because its later experiments use SGD.
_base_ = '../mocov2plus_lars_r50_200e.py'
# 0.45 per 256 images at 100 epochs is the release's rate.
optim_wrapper = dict(optimizer=dict(lr=1.8))
train_cfg = dict(max_epochs=100)
