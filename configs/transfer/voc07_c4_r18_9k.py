# VOC07 detection with a ResNet-18 (Tab. 7 of Huang et al. 2022).
_base_ = ['voc07_c4_r50_9k.py', '_base_/c4_r18.py']

model = {{_base_.c4_r18}}
