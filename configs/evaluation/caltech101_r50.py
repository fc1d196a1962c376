# Caltech-101: 102 classes, including the background, scored by mean accuracy per class. 30 images of each class, chosen at
# random, are training images, of which 5 are held out to choose settings. The other images are test images. The published
# random choice is not public.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    source=dict(type='CustomDataset', data_root='data/caltech101/caltech101/101_ObjectCategories'),
    metric='mean per class',
    views=[{{_base_.test_view}}],
)
evaluation = dict(
    train=dict(type='Part', held=True, fraction=30, dataset=images),
    test=dict(type='Part', held=False, fraction=30, dataset=images),
    held_out=5 / 30,
)
