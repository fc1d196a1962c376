# Places205: 205 scenes, top-1 on the validation list; validation is a part of train.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='Places205', root='data/places205', split='train', views=[test_view]),
    test=dict(type='Places205', root='data/places205', split='val', views=[test_view]),
    batch_size=256,
)
