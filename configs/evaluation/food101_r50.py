# Food-101: 101 dishes, scored by top-1 accuracy.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    views=[{{_base_.test_view}}],
    source=dict(type='Food101', data_root='data/food101/food-101'),
)
evaluation = dict(
    train=dict(images, split='train'), test=dict(images, split='test'), held_out=7_575 / 75_750
)
