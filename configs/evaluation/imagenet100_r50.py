# ImageNet-100: the classes that imagenet100.txt names, one a line; there are several lists about, so take the one of the
# numbers you compare with. Validation is a part of train.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(
        type='NamedClasses',
        names='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/train', views=[{{_base_.test_view}}]),
    ),
    test=dict(
        type='NamedClasses',
        names='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/val', views=[{{_base_.test_view}}]),
    ),
)
