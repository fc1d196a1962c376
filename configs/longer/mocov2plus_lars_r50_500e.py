# MoCo v2+ with LARS for 500 epochs. Fig. 6 of Huang et al. 2022 has no such curve, because its models are trained with
# SGD. The learning rate is therefore an assumption.
_base_ = '../mocov2plus_lars_r50_200e.py'
train_cfg = dict(max_epochs=500)
assumptions = dict(
    lars_rate='with LARS and 500 epochs, the learning rate is 0.3 per 256 images; neither the paper nor its release '
    'states a learning rate'
)
