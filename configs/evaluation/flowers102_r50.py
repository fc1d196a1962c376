# Oxford Flowers: 102 classes, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(
        type='Flowers102', root='data/flowers102', split='train', views=[{{_base_.test_view}}]
    ),
    val=dict(type='Flowers102', root='data/flowers102', split='val', views=[{{_base_.test_view}}]),
    test=dict(
        type='Flowers102', root='data/flowers102', split='test', views=[{{_base_.test_view}}]
    ),
)
