# MSBReg with K = 4 views on ImageNet: LARS, batch 512, weight decay 1e-5, 300 epochs.
# Learning rate: base 0.15 x batch 512 / 256 x 4 views = 1.2.
_base_ = '../../../configs/byol_lars_r50_200e.py'
custom_imports = dict(imports=['projects.msbreg.msbreg'], allow_failed_imports=False)
# Table 1 of the supplement has one augmentation recipe for all views, while BYOL has a different one for each of its two views.
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.08, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]
model = dict(
    head=dict(
        type='RegularisedHead',
        base=dict(type='CentroidHead', centroid='leave_one_out'),
        terms=[
            dict(type='BrownianTerm', weight=0.5, per='image'),
            dict(type='SingularValueTerm', weight=0.004),
        ],
    )
)
total_batch_size = 512
auto_scale_lr = dict(base_batch_size=512)
train_dataloader = dict(dataset=dict(views=[view] * 4))
optim_wrapper = dict(optimizer=dict(lr=1.2, weight_decay=1e-5))
train_cfg = dict(max_epochs=300)
assumptions = dict(
    lars_batch=None,
    widths="the MLPs of models with a ResNet-50 have 4096 hidden units, as in BYOL's paper; the supplement says 2048",
    msbreg_terms="MSBReg's terms are an interpretation, because its supplement has no equations (README of projects/msbreg)",
    msbreg_teacher="the teacher's momentum, the area of the crops and the width of the blur are BYOL's",
)
