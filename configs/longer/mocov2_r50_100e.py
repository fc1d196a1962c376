# MoCo v2 for 100 epochs, as with a ResNet-18 and a ResNet-101 in Tab. 7 of Huang et al. 2022.
_base_ = '../mocov2_r50_200e.py'
train_cfg = dict(max_epochs=100)
