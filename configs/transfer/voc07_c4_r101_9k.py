# VOC07 detection with ResNet-101 (Tab. 7).
_base_ = ['voc07_c4_r50_9k.py', '_base_/c4_r101.py']

model = {{_base_.c4_r101}}
