# VOC07+12 detection with ResNet-101 (Tab. 7).
_base_ = ['voc0712_c4_r50_24k.py', '_base_/c4_r101.py']

model = {{_base_.c4_r101}}
