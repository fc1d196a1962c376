# Caltech-101: 102 classes, including the background, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(
        type='Caltech101', root='data/caltech101', split='train', views=[{{_base_.test_view}}]
    ),
    val=dict(type='Caltech101', root='data/caltech101', split='val', views=[{{_base_.test_view}}]),
    test=dict(
        type='Caltech101', root='data/caltech101', split='test', views=[{{_base_.test_view}}]
    ),
)
