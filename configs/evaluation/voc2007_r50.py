# Pascal VOC 2007 classification: an image can have several of the 20 classes. The score is the 11-point mAP.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='VOC2007', root='data/voc2007', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='VOC2007', root='data/voc2007', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='VOC2007', root='data/voc2007', split='test', views=[{{_base_.test_view}}]),
    # The SVM gets the whole image without a crop, as in VISSL.
    views=dict(svm=[dict(type='Resize', size=(224, 224))]),
)
