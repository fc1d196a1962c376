# BYOL as in the ablations of its paper (Tab. 5): 300 epochs at batch 4096, learning rate 0.3 per 256 images, weight decay
# 1e-6, teacher momentum from 0.99, and the asymmetric pair of views.
_base_ = '../architectures/byol_lars_r50_1000e.py'
model = dict(head=dict(type='InfoNCEHead', alpha=0.1, beta=0.0))
optim_wrapper = dict(optimizer=dict(lr=4.8, weight_decay=1e-6))
default_hooks = dict(momentum=dict(base=0.99))
train_cfg = dict(max_epochs=300)
