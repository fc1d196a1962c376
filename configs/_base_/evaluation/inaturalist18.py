# iNaturalist 2018: 8 142 species, top-1 on the validation list; validation is a part of train.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='INaturalist2018', root='data/inaturalist18', split='train', views=[test_view]),
    test=dict(type='INaturalist2018', root='data/inaturalist18', split='val', views=[test_view]),
    batch_size=256,
)
