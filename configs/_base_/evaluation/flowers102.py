# Oxford Flowers: 102 classes, mean per class.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='Flowers102', root='data/flowers102', split='train', views=[test_view]),
    val=dict(type='Flowers102', root='data/flowers102', split='val', views=[test_view]),
    test=dict(type='Flowers102', root='data/flowers102', split='test', views=[test_view]),
    batch_size=256,
)
