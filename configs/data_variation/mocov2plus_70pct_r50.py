# MoCo v2+ on 70 % of ImageNet's classes (Fig. 8 of Huang et al. 2022), for as many iterations as on 100 %.
_base_ = 'mocov2plus_100pct_r50.py'
train_dataloader = dict(dataset=dict(classes=0.7))
