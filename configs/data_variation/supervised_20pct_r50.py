# Supervised on 20 % of ImageNet's classes (Fig. 8), for the same iterations.
_base_ = 'supervised_100pct_r50.py'
model = dict(classes=200)
train_dataloader = dict(dataset=dict(fraction=0.2))
