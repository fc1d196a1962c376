# BYOL, ResNet-101, 100 epochs (Tab. 7).
_base_ = '../longer/byol_r50_100e.py'
model = dict(backbone=dict(depth=101))
