# Pascal VOC 2007 classification: 20 classes, several an image, 11-point mAP.
test_view = [dict(type='Resize', size=224, interpolation='bicubic'), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='VOC2007', root='data/voc2007', split='train', views=[test_view]),
    val=dict(type='VOC2007', root='data/voc2007', split='val', views=[test_view]),
    test=dict(type='VOC2007', root='data/voc2007', split='test', views=[test_view]),
    batch_size=256,
)
