# MoCo v3 with a ResNet-50 as in its release: InfoNCE over the batch with temperature 1, LARS with learning rate 0.3 per
# 256 images, batch 4096, and BYOL's pair of views with crops of at least a fifth of the image. Unlike with a ViT, the
# predictor does not end in a batch norm.
__method__ = 'mocov3'
_base_ = ['../architectures/byol_lars_r50_1000e.py', '../_base_/views/methods.py']
model = dict(
    projector=dict(last_norm=dict(type='SyncBN', affine=False), last_bias=False),
    predictor=dict(last_bias=False),
    head=dict(_delete_=True, type='BatchContrastiveHead', temperature=1.0),
)
train_dataloader = dict(dataset=dict(views={{_base_.mocov3_r50}}))
optim_wrapper = dict(optimizer=dict(lr=4.8, weight_decay=1e-6))
default_hooks = dict(momentum=dict(base=0.99))
train_cfg = dict(max_epochs=300)
