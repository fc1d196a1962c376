# Stanford Cars: 196 models of cars, scored by top-1 accuracy.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(
        type='StanfordCars', root='data/stanford_cars', split='train', views=[{{_base_.test_view}}]
    ),
    val=dict(
        type='StanfordCars', root='data/stanford_cars', split='val', views=[{{_base_.test_view}}]
    ),
    test=dict(
        type='StanfordCars', root='data/stanford_cars', split='test', views=[{{_base_.test_view}}]
    ),
)
