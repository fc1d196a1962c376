# VOC07 detection with a ResNet-101 (AIRL's Tab. 7).
_base_ = 'voc07_c4_r50_9k.py'

model = dict(backbone=dict(depth=101), roi_head=dict(shared_head=dict(depth=101)))
