# Birdsnap: 500 species of birds, scored by top-1 accuracy.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(type='Birdsnap', root='data/birdsnap', split='train', views=[{{_base_.test_view}}]),
    val=dict(type='Birdsnap', root='data/birdsnap', split='val', views=[{{_base_.test_view}}]),
    test=dict(type='Birdsnap', root='data/birdsnap', split='test', views=[{{_base_.test_view}}]),
)
