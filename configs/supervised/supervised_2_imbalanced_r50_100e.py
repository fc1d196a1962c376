# Supervised on ImageNet relabeled along WordNet (Tab. 6): 2 imbalanced classes, merged bottom-up (the diamond).
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=2)
train_dataloader = dict(dataset=dict(groups=2))
