# Birdsnap: 500 birds, top-1.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='Birdsnap', root='data/birdsnap', split='train', views=[test_view]),
    val=dict(type='Birdsnap', root='data/birdsnap', split='val', views=[test_view]),
    test=dict(type='Birdsnap', root='data/birdsnap', split='test', views=[test_view]),
    batch_size=256,
)
