# Oxford Flowers: 102 classes, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    metric='mean per class',
    views=[{{_base_.test_view}}],
    source=dict(type='Flowers102', data_root='data/flowers102/flowers-102'),
)
evaluation = dict(
    train=dict(images, split='train'),
    val=dict(images, split='val'),
    test=dict(images, split='test'),
)
