# MoCo v2 with a ResNet-18 for 100 epochs (Tab. 7 of Huang et al. 2022).
_base_ = '../longer/mocov2_r50_100e.py'
# The hidden layer of MoCo v2's projector is as wide as the features, which is 512 for a ResNet-18. The release keeps 2048.
# The paper does not state the width.
model = dict(backbone=dict(depth=18), projector=dict(in_channels=512, hidden_channels=512))
assumptions = dict(
    projector="the hidden layer of MoCo v2's projector is as wide as the features of a ResNet-18; in the release, its "
    'width is 2048'
)
