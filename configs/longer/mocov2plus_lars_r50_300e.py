# MoCo v2+ with LARS for 300 epochs. Fig. 6 of Huang et al. 2022 has no such curve, because its models are trained with
# SGD.
_base_ = '../mocov2plus_lars_r50_200e.py'
train_cfg = dict(max_epochs=300)
# Fig. 7 of Huang et al. 2022 shows checkpoints of every 50 epochs.
default_hooks = dict(checkpoint=dict(interval=50, max_keep_ckpts=-1))
assumptions = dict(
    lars_rate="with LARS and 300 epochs, the learning rate is 0.3 per 256 images, as in BYOL's ablations; Huang "
    'et al. 2022 have no such model'
)
