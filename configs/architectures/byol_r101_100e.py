# BYOL with a ResNet-101 for 100 epochs (Tab. 7 of Huang et al. 2022).
_base_ = '../longer/byol_r50_100e.py'
model = dict(backbone=dict(depth=101))
