# Supervised training on 50 % of ImageNet's classes (AIRL's Fig. 8), for as many iterations as on 100 %.
_base_ = 'supervised_100pct_r50.py'
model = dict(classes=500)
train_dataloader = dict(dataset=dict(fraction=0.5))
