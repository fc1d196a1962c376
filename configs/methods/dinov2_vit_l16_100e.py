# DINOv2 with a ViT-L/16 on ImageNet-1k for 100 epochs, the short recipe of its release: 2048 images per step, centered
# targets, and one projector for class tokens and patches.
_base_ = 'dinov2_vit_s16_100e.py'
epochs = 100
model = dict(
    backbone=dict(
        _delete_=True,
        type='TimmBackbone',
        name='vit_large_patch16_224',
        tokens=True,
        dynamic_img_size=True,
        init_values=1e-5,
        drop_path=0.3,
    ),
    projector=dict(in_channels=1024),
    patch_projector=None,
    head=dict(targets='center'),
)
total_batch_size = 2048
auto_scale_lr = dict(base_batch_size=2048)
optim_wrapper = dict(optimizer=dict(lr=4e-3 * 2**0.5))
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={
            'head.key_temperature': dict(start=0.04, end=0.07, until=30 / epochs),
            'projector.frozen': dict(start=1, end=0, until=1 / epochs, curve='step'),
        },
    )
]
