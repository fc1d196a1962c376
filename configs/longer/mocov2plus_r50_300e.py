# MoCo v2+ for 300 epochs (Fig. 6 of Huang et al. 2022).
_base_ = '../mocov2plus_r50_200e.py'
train_cfg = dict(max_epochs=300)
# Fig. 7 of Huang et al. 2022 shows checkpoints of every 50 epochs.
default_hooks = dict(checkpoint=dict(interval=50, max_keep_ckpts=-1))
