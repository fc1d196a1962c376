# Supervised on ImageNet relabeled along WordNet (Tab. 6): 79 classes.
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=79)
train_dataloader = dict(dataset=dict(groups=79))
