# Supervised on ImageNet relabeled along WordNet (Tab. 6): 2 balanced classes, artifact or not (the flat sign).
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=2)
train_dataloader = dict(dataset=dict(groups='artifact'))
