# BYOL with a ResNet-18 for 100 epochs (AIRL's Tab. 7).
_base_ = '../longer/byol_r50_100e.py'
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512))
