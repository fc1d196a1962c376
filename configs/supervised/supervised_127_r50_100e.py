# Supervised on ImageNet under the labels of Huh et al. (Tab. 6): 127 classes.
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=127)
train_dataloader = dict(dataset=dict(labels='data/imagenet/huh/train_up_down_127.txt'))
