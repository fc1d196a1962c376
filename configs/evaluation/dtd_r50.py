# Describable textures: 47 classes, scored by top-1 accuracy on the first partition.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='DTD', root='data/dtd', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='DTD', root='data/dtd', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='DTD', root='data/dtd', split='test', views=[{{_base_.test_view}}]),
)
