# MoCo v2+ on 10 % of ImageNet's classes (AIRL's Fig. 8), for as many iterations as on 100 %.
_base_ = 'mocov2plus_100pct_r50.py'
train_dataloader = dict(dataset=dict(fraction=0.1))
