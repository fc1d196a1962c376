# VOC07 detection with a ResNet-101 (Tab. 7 of Huang et al. 2022).
_base_ = 'voc07_c4_r50_9k.py'

model = dict(backbone=dict(depth=101), roi_head=dict(shared_head=dict(depth=101)))
