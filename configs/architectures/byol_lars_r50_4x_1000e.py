# BYOL, ResNet-50 4x as wide (BYOL Tab. 1b).
_base_ = 'byol_lars_r50_1000e.py'
model = dict(
    backbone=dict(stem_channels=256, base_channels=256),
    projector=dict(in_channels=8192),
)
