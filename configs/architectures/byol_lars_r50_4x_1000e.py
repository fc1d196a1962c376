# BYOL with a ResNet-50 of four times the width (BYOL's Tab. 1b).
_base_ = 'byol_lars_r50_1000e.py'
model = dict(
    backbone=dict(stem_channels=256, base_channels=256),
    projector=dict(in_channels=8192),
)
