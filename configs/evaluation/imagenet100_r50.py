# ImageNet-100: the classes listed in imagenet100.txt, one per line. Several lists exist; use the one behind the numbers
# you compare with. Validation is a part of train.
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
