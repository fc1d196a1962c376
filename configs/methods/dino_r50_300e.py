# DINO with two crops on the ResNet-50 of the other methods: BYOL's asymmetric views, SGD with learning rate 0.03 per 256
# images, teacher momentum from 0.996. dino_vit_s16_300e.py is the complete method, with small crops and DINO's own
# schedules.
__method__ = 'dino'
_base_ = '../byol_asymmetric_r50_200e.py'
model = dict(
    projector=dict(
        type='PrototypeNeck',
        hidden_channels=2048,
        out_channels=256,
        layers=3,
        norm_cfg=None,
        prototypes=65536,
    ),
    predictor=None,
    head=dict(_delete_=True, type='DINOHead', prototypes=65536),
)
default_hooks = dict(momentum=dict(base=0.996))
train_cfg = dict(max_epochs=300)
