# BYOL's largest network (its Tab. 1b), ResNet-200 at twice the width, in bfloat16 with activation checkpointing.
_base_ = '../architectures/byol_lars_r200_2x_1000e.py'
fast = dict(precision='bfloat16', channels_last=True, checkpointing=True)
