# VOC07 detection with a ResNet-18 (AIRL's Tab. 7).
_base_ = ['voc07_c4_r50_9k.py', '_base_/c4_r18.py']

model = {{_base_.c4_r18}}
