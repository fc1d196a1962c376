# LeJEPA with a ResNet-50, as its release recommends: AdamW with learning rate 5e-4, weight decay 5e-4, a rate that ends at
# a thousandth of its maximum, two crops of 224 and six of 98 pixels. The release has no config for a ResNet. The batch of
# 256, the 100 epochs, the 10 epochs of warm-up, the 64 dimensions of projections and the weight of 0.05 for the Epps-Pulley
# term of the loss are assumptions.
__method__ = 'lejepa'
_base_ = ['../byol_asymmetric_r50_200e.py', '../_base_/views/methods.py']
model = dict(
    projector=dict(hidden_channels=2048, out_channels=64, layers=3),
    predictor=None,
    target='student',
    key_views=[0, 1],
    head=dict(_delete_=True, type='LeJEPAHead', weight=0.05),
)
train_dataloader = dict(dataset=dict(views={{_base_.lejepa}}))
total_batch_size = 256
auto_scale_lr = dict(base_batch_size=256)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=5e-4, weight_decay=5e-4))
param_scheduler = [
    dict(type='WarmUpLR', end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.001, begin=10, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=100)
