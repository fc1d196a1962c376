# STL-10 enlarged to the size of pre-training: top-1. Validation is a part of train.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='STL10', root='data/stl10', split='train', views=[{{_base_.test_view}}]),
    test=dict(type='STL10', root='data/stl10', split='test', views=[{{_base_.test_view}}]),
)
