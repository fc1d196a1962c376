# MSBReg's ablations with K = 4 views: ResNet-18 on ImageNet-100, MLPs with 512 hidden and 128 output units, 320 epochs.
# Learning rate: base 0.4 x batch 512 / 256 x 4 views = 3.2.
_base_ = 'msbreg_k4_r50_300e.py'
model = dict(
    backbone=dict(depth=18),
    projector=dict(in_channels=512, hidden_channels=512, out_channels=128),
    predictor=dict(in_channels=128, hidden_channels=512, out_channels=128),
)
train_dataloader = dict(dataset=dict(root='data/imagenet100/train'))
evaluation = dict(train=dict(root='data/imagenet100/train'), test=dict(root='data/imagenet100/val'))
optim_wrapper = dict(optimizer=dict(lr=3.2))
train_cfg = dict(max_epochs=320)
assumptions = dict(epochs='training takes 320 epochs, as Section 1.1 says; Section 5 says 300')
