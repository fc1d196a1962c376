# BYOL's largest network, a ResNet-200 of twice the width (BYOL's Tab. 1b), in bfloat16.
_base_ = '../architectures/byol_lars_r200_2x_1000e.py'
fast = dict(precision='bfloat16')
