# Places205: 205 kinds of scenes, scored by top-1 accuracy on the official validation list. The validation images are a
# part of the training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(
        type='Places205', root='data/places205', split='train', views=[{{_base_.test_view}}]
    ),
    test=dict(type='Places205', root='data/places205', split='val', views=[{{_base_.test_view}}]),
)
recipes = dict(linear='linear_places_28e')
