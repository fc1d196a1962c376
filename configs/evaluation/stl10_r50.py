# STL-10, scored by top-1 accuracy. Images are enlarged to the size of pre-training. The validation images are a part of the
# training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='STL10', root='data/stl10', split='train', views=[{{_base_.test_view}}]),
    test=dict(type='STL10', root='data/stl10', split='test', views=[{{_base_.test_view}}]),
)
