# MoCo v2, ResNet-18, 100 epochs (Tab. 7).
_base_ = '../longer/mocov2_r50_100e.py'
# MoCo v2's hidden layer is as wide as the features. The release keeps 2048 here as well; the paper does not specify it.
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512, hidden_channels=512))
assumptions = dict(
    projector="MoCo v2's hidden layer is as wide as ResNet-18's features; the release keeps 2048"
)
