# MoCo v2+, ResNet-101, 100 epochs (Tab. 7).
_base_ = '../longer/mocov2plus_r50_100e.py'
model = dict(backbone=dict(depth=101))
