# The channels of a C4 detector with a ResNet-18.
c4_r18 = dict(
    backbone=dict(depth=18),
    rpn_head=dict(in_channels=256, feat_channels=256),
    roi_head=dict(
        shared_head=dict(depth=18),
        bbox_roi_extractor=dict(out_channels=256),
        bbox_head=dict(in_channels=512),
    ),
)
