# MoCo v2, ResNet-18, 100 epochs (Tab. 7).
_base_ = '../longer/mocov2_r50_100e.py'
# MoCo v2 keeps the hidden layer as wide as the features; the release keeps 2048 here too, and the paper does not say.
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512, hidden_channels=512))
assumptions = dict(
    projector='the hidden layer of MoCo v2 is as wide as the features of ResNet-18; the release keeps 2048'
)
