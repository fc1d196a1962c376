# SUN397: 397 kinds of scenes, scored by top-1 accuracy on the first partition.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='SUN397', root='data/sun397', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='SUN397', root='data/sun397', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='SUN397', root='data/sun397', split='test', views=[{{_base_.test_view}}]),
)
