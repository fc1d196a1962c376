# VOC07+12 detection with a ResNet-101 (AIRL's Tab. 7).
_base_ = 'voc0712_c4_r50_24k.py'

model = dict(backbone=dict(depth=101), roi_head=dict(shared_head=dict(depth=101)))
