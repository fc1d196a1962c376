# BYOL with a ResNet-18 for 100 epochs (Tab. 7 of Huang et al. 2022).
_base_ = '../longer/byol_r50_100e.py'
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512))
