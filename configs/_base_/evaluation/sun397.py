# SUN397: 397 scenes, top-1 on the first partition.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='SUN397', root='data/sun397', split='train', views=[test_view]),
    val=dict(type='SUN397', root='data/sun397', split='val', views=[test_view]),
    test=dict(type='SUN397', root='data/sun397', split='test', views=[test_view]),
    batch_size=256,
)
