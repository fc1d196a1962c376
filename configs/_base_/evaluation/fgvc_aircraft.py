# FGVC-Aircraft: 100 variants, mean per class.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='FGVCAircraft', root='data/fgvc_aircraft', split='train', views=[test_view]),
    val=dict(type='FGVCAircraft', root='data/fgvc_aircraft', split='val', views=[test_view]),
    test=dict(type='FGVCAircraft', root='data/fgvc_aircraft', split='test', views=[test_view]),
    batch_size=256,
)
