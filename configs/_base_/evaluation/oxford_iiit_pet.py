# Oxford-IIIT Pets: 37 breeds, mean per class.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='OxfordIIITPet', root='data/oxford_iiit_pet', split='train', views=[test_view]),
    val=dict(type='OxfordIIITPet', root='data/oxford_iiit_pet', split='val', views=[test_view]),
    test=dict(type='OxfordIIITPet', root='data/oxford_iiit_pet', split='test', views=[test_view]),
    batch_size=256,
)
