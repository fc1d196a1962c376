# LeJEPA with a ResNet-50: AdamW at 5e-4, decay 5e-4, batch 256, two crops of 224 and six of 96 pixels, 64 numbers projected.
_base_ = ['../../../configs/byol_asymmetric_r50_200e.py', '_base_/multi_crop.py']
custom_imports = dict(imports=['projects.more_methods.lejepa'], allow_failed_imports=False)
model = dict(
    projector=dict(hidden_channels=2048, out_channels=64, layers=3),
    predictor=None,
    target='student',
    key_views=[0, 1],
    head=dict(_delete_=True, type='LeJEPAHead', weight=0.05),
)
train_dataloader = dict(dataset=dict(views={{_base_.multi_crop}}))
total_batch_size = 256
auto_scale_lr = dict(base_batch_size=256)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=5e-4, weight_decay=5e-4))
train_cfg = dict(max_epochs=100)
