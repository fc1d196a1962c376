# Supervised pre-training on ImageNet with the 79 classes of Huh et al. (Tab. 6 of Huang et al. 2022).
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=79)
train_dataloader = dict(dataset=dict(labels='data/imagenet/huh/train_down_up_79.txt'))
