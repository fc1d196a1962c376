# Paris 6k for `retrieval`: 55 queries, whole images of 224 pixels.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='Landmarks', root='data/paris6k', split='query', views=[{{_base_.test_view}}]),
    test=dict(type='Landmarks', root='data/paris6k', split='test', views=[{{_base_.test_view}}]),
)
