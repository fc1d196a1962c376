# The depth of a C4 detector on ResNet-101.
c4_r101 = dict(backbone=dict(depth=101), roi_head=dict(shared_head=dict(depth=101)))
