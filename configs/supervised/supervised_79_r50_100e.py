# Supervised on ImageNet under the labels of Huh et al. (Tab. 6): 79 classes.
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=79)
train_dataloader = dict(dataset=dict(labels='data/imagenet/huh/train_down_up_79.txt'))
