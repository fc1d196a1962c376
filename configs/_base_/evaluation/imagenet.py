# ImageNet: the labels of the test images are not out, so the test is val and validation a part of train.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='ImageFolder', root='data/imagenet/train', views=[test_view]),
    test=dict(type='ImageFolder', root='data/imagenet/val', views=[test_view]),
    batch_size=256,
)
