# Food-101: 101 dishes, top-1.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='Food101', root='data/food101', split='train', views=[test_view]),
    val=dict(type='Food101', root='data/food101', split='val', views=[test_view]),
    test=dict(type='Food101', root='data/food101', split='test', views=[test_view]),
    batch_size=256,
)
