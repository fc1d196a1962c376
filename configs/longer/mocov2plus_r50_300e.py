# MoCo v2+ for 300 epochs (AIRL's Fig. 6).
_base_ = '../mocov2plus_r50_200e.py'
train_cfg = dict(max_epochs=300)
# AIRL's Fig. 7 shows checkpoints of every 50 epochs.
default_hooks = dict(checkpoint=dict(interval=50, max_keep_ckpts=-1))
