# Distill DINOv2's released ViT-S/14 into a ResNet-50: a linear layer maps the student's features to the teacher's width, and
# the student predicts the teacher's feature of each view.
__method__ = 'distill'
_base_ = '../mocov2plus_r50_200e.py'
model = dict(
    projector=dict(hidden_channels=None, out_channels=384, norm_cfg=None),
    predictor=None,
    target='frozen',
    teacher=dict(
        type='FrozenTeacher',
        backbone=dict(
            type='TimmBackbone',
            name='vit_small_patch14_dinov2.lvd142m',
            pretrained=True,
            dynamic_img_size=True,
        ),
    ),
    head=dict(_delete_=True, type='DistillationHead'),
    queue=None,
)
train_cfg = dict(max_epochs=100)
