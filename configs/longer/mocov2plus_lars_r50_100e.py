# MoCo v2+ with LARS for 100 epochs. The paper of Huang et al. 2022 has no such model, because its later experiments use
# SGD.
_base_ = '../mocov2plus_lars_r50_200e.py'
# The release of that paper uses a learning rate of 0.45 per 256 images for 100 epochs.
optim_wrapper = dict(optimizer=dict(lr=1.8))
train_cfg = dict(max_epochs=100)
