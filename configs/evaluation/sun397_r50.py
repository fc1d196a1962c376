# SUN397: 397 kinds of scenes, scored by top-1 accuracy on the first partition.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    views=[{{_base_.test_view}}],
    source=dict(type='SUN397', data_root='data/sun397'),
)
evaluation = dict(
    train=dict(images, split='train'), test=dict(images, split='test'), held_out=3_970 / 19_850
)
