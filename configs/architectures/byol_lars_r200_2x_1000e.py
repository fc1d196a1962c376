# BYOL with a ResNet-200 of twice the width (BYOL's Tab. 1b).
_base_ = 'byol_lars_r50_2x_1000e.py'
model = dict(backbone=dict(type='ResNet', depth=200))
