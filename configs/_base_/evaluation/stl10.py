# STL-10 enlarged to the size of pre-training: top-1. Validation is a part of train.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='STL10', root='data/stl10', split='train', views=[test_view]),
    test=dict(type='STL10', root='data/stl10', split='test', views=[test_view]),
    batch_size=256,
)
