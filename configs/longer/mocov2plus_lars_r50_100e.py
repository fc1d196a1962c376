# MoCo v2+ with LARS for 100 epochs. AIRL's paper has no such model, because its later experiments use SGD.
_base_ = '../mocov2plus_lars_r50_200e.py'
# AIRL's release uses a learning rate of 0.45 per 256 images for 100 epochs.
optim_wrapper = dict(optimizer=dict(lr=1.8))
train_cfg = dict(max_epochs=100)
