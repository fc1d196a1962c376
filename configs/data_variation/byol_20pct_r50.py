# BYOL on 20 % of ImageNet's classes (Fig. 8), for the same iterations.
_base_ = 'byol_100pct_r50.py'
train_dataloader = dict(dataset=dict(fraction=0.2))
