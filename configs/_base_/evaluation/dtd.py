# Describable textures: 47 classes, top-1 on the first partition.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='DTD', root='data/dtd', split='train', views=[test_view]),
    val=dict(type='DTD', root='data/dtd', split='val', views=[test_view]),
    test=dict(type='DTD', root='data/dtd', split='test', views=[test_view]),
    batch_size=256,
)
