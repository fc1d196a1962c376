# Pascal VOC 2007 classification: 20 classes, several per image, 11-point mAP.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='VOC2007', root='data/voc2007', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='VOC2007', root='data/voc2007', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='VOC2007', root='data/voc2007', split='test', views=[{{_base_.test_view}}]),
    views=dict(svm=[dict(type='Resize', size=(224, 224))]),  # VISSL's SVM sees the whole image
)
