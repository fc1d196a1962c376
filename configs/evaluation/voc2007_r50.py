# Pascal VOC 2007 classification: an image can have several of the 20 classes. The score is the 11-point mAP.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    metric='11-point mAP',
    views=[{{_base_.test_view}}],
    source=dict(type='VOC', data_root='data/voc2007/VOCdevkit/VOC2007'),
)
evaluation = dict(
    train=dict(images, split='train'),
    val=dict(images, split='val'),
    test=dict(images, split='test'),
    # The SVM gets the whole image without a crop, as in VISSL.
    views=dict(svm=[dict(type='Resize', size=(224, 224))]),
)
