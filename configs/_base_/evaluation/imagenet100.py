# ImageNet-100: the classes that imagenet100.txt names, one a line; there are several lists about, so take the one of the
# numbers you compare with. Validation is a part of train.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(
        type='NamedClasses',
        names='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/train', views=[test_view]),
    ),
    test=dict(
        type='NamedClasses',
        names='data/imagenet/imagenet100.txt',
        dataset=dict(type='ImageFolder', root='data/imagenet/val', views=[test_view]),
    ),
    batch_size=256,
)
