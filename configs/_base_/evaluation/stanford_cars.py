# Stanford Cars: 196 models, top-1.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='StanfordCars', root='data/stanford_cars', split='train', views=[test_view]),
    val=dict(type='StanfordCars', root='data/stanford_cars', split='val', views=[test_view]),
    test=dict(type='StanfordCars', root='data/stanford_cars', split='test', views=[test_view]),
    batch_size=256,
)
