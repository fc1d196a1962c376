# DINOv2 with a ViT-S/16 for 100 epochs. DINOv2 publishes no recipe for this network: the crops, the schedule and the layer
# scale are those of its short recipe for a ViT-L/16, and the Sinkhorn targets and separate projectors are those of its long
# recipe.
__method__ = 'dinov2'
_base_ = 'dinov2_vit_s16_800e.py'
epochs = 100
model = dict(
    backbone=dict(layer_scale_init_value=1e-5),
    projector=dict(prototypes=65536),
    patch_projector=dict(prototypes=65536),
    head=dict(prototypes=65536),
)
train_dataloader = dict(dataset=dict(views={{_base_.dinov2}}))
train_cfg = dict(max_epochs=epochs)
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={
            'head.key_temperature': dict(start=0.04, end=0.07, until=30 / epochs),
            'projector.frozen': dict(start=1, end=0, until=1 / epochs, curve='step'),
            'patch_projector.frozen': dict(start=1, end=0, until=1 / epochs, curve='step'),
        },
    )
]
