# BYOL as trained by its released code (deepmind-research/byol), with seven settings that the paper does not state. The
# eighth such setting, bicubic resampling of test images, is not part of training: set `Resize.interpolation` of the
# evaluation.
_base_ = '../architectures/byol_lars_r50_1000e.py'
custom_imports = dict(imports='projects.papers.release_jitter')
model = dict(
    backbone=dict(zero_init_residual=True),
    projector=dict(last_bias=False),
    predictor=dict(last_bias=False),
    copy_student=False,
)
optim_wrapper = dict(optimizer=dict(inside=False))
default_hooks = dict(momentum=dict(first_step=0))
param_scheduler = [
    dict(type='WarmUpLR', start=0.0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=10, convert_to_iter_based=True),
]
crop_to_grey = [
    dict(type='RandomResizedCrop', size=224, scale=(0.08, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ReleaseColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
]
first_view = [*crop_to_grey, dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))]
second_view = [
    *crop_to_grey,
    dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]
train_dataloader = dict(dataset=dict(views=[first_view, second_view]))
assumptions = dict(
    release='the color jitter was written from a description of the release; its formula of saturation, and the '
    "clipping between its four changes of color, were not compared with the release's code"
)
