# Supervised pre-training on ImageNet with the 79 classes of Huh et al. (AIRL's Tab. 6).
_base_ = 'supervised_10_r50_100e.py'
model = dict(classes=79)
train_dataloader = dict(dataset=dict(labels='data/imagenet/huh/train_down_up_79.txt'))
