# Describable textures: 47 classes, scored by top-1 accuracy on the first partition.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    views=[{{_base_.test_view}}],
    source=dict(type='DTD', data_root='data/dtd/dtd/dtd'),
)
evaluation = dict(
    train=dict(images, split='train'),
    val=dict(images, split='val'),
    test=dict(images, split='test'),
)
