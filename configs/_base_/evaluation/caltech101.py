# Caltech-101: 102 classes with the background, mean per class.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='Caltech101', root='data/caltech101', split='train', views=[test_view]),
    val=dict(type='Caltech101', root='data/caltech101', split='val', views=[test_view]),
    test=dict(type='Caltech101', root='data/caltech101', split='test', views=[test_view]),
    batch_size=256,
)
