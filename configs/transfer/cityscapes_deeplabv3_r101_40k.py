# Cityscapes: the same as cityscapes_deeplabv3_r50_40k.py with a ResNet-101.
_base_ = 'cityscapes_deeplabv3_r50_40k.py'

model = dict(backbone=dict(depth=101))
