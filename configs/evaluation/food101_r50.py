# Food-101: 101 dishes, scored by top-1 accuracy.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='Food101', root='data/food101', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='Food101', root='data/food101', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='Food101', root='data/food101', split='test', views=[{{_base_.test_view}}]),
)
