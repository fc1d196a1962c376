# BYOL's largest network (its Tab. 1b), ResNet-200 twice as wide, in bfloat16 and with the input of each block alone kept.
_base_ = '../architectures/byol_lars_r200_2x_1000e.py'
fast = dict(precision='bfloat16', channels_last=True, checkpointing=True)
