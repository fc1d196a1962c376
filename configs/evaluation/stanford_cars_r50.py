# Stanford Cars: 196 models of cars, scored by top-1 accuracy.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    views=[{{_base_.test_view}}],
    source=dict(type='StanfordCars', data_root='data/stanford_cars/stanford_cars'),
)
evaluation = dict(
    train=dict(images, split='train'), test=dict(images, split='test'), held_out=1_650 / 8_144
)
