# Cityscapes with the backbone and the schedule in the release of Huang et al. 2022: stride 16, multi-grid 1-2-4 in the last
# stage, and 90 000 iterations. mmseg uses the values of `multi_grid` directly as dilations, so they are the multi-grid times
# the stage's dilation of 2.
_base_ = 'cityscapes_deeplabv3_r50_40k.py'

model = dict(
    backbone=dict(strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2), multi_grid=(2, 4, 8)),
    decode_head=dict(dilations=(1, 6, 12, 18)),
)
param_scheduler = [dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0, end=90000, by_epoch=False)]
train_cfg = dict(max_iters=90000, val_interval=90000)
assumptions = dict(
    head="the segmentation head is mmseg's, which has 512 channels, dropout and an auxiliary head; the head of the "
    'release has 256 channels and a loss on hard pixels',
)
