# Paris 6k for the protocol `retrieval`: 55 queries, with images of 224 pixels that are not cropped to the queried building.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='Landmarks', root='data/paris6k', split='query', views=[{{_base_.test_view}}]),
    test=dict(type='Landmarks', root='data/paris6k', split='test', views=[{{_base_.test_view}}]),
)
