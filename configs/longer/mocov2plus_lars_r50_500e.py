# MoCo v2+ with LARS for 500 epochs. AIRL's Fig. 6 has no such curve, because its models are trained with SGD. The learning
# rate is therefore an assumption.
_base_ = '../mocov2plus_lars_r50_200e.py'
train_cfg = dict(max_epochs=500)
assumptions = dict(
    lars_rate='0.3 per 256 images with LARS at 500 epochs; neither paper nor release states a rate'
)
