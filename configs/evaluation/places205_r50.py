# Places205: 205 scenes, top-1 on the validation list; validation is a part of train.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(
        type='Places205', root='data/places205', split='train', views=[{{_base_.test_view}}]
    ),
    test=dict(type='Places205', root='data/places205', split='val', views=[{{_base_.test_view}}]),
)
recipes = dict(linear='linear_places_28e')
