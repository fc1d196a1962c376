# Cityscapes: the same as cityscapes_deeplabv3_r50_40k.py with a ResNet-18.
_base_ = 'cityscapes_deeplabv3_r50_40k.py'

model = dict(
    backbone=dict(depth=18),
    decode_head=dict(in_channels=512, channels=128),
    auxiliary_head=dict(in_channels=256, channels=64),
)
