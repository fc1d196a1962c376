# BYOL with LARS for 300 epochs. Fig. 6 has no such line, because its networks are trained with SGD.
_base_ = '../byol_lars_r50_200e.py'
train_cfg = dict(max_epochs=300)
default_hooks = dict(checkpoint=dict(interval=50, max_keep_ckpts=-1))  # Fig. 7: every 50 epochs
assumptions = dict(
    lars_rate="0.3 per 256 images with LARS at 300 epochs, as in BYOL's ablations; AIRL has no such row"
)
