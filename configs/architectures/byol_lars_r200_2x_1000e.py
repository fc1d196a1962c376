# BYOL, ResNet-200 at twice the width (BYOL Tab. 1b).
_base_ = 'byol_lars_r50_2x_1000e.py'
model = dict(backbone=dict(type='ResNet', depth=200))
