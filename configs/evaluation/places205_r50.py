# Places205: 205 kinds of scenes, scored by top-1 accuracy on the official validation list. The validation images are a
# part of the training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
images = dict(type='PublicImages')
source = dict(
    type='Places205',
    data_root='data/places205',
    data_prefix='data/vision/torralba/deeplearning/images256',
)
evaluation = dict(
    train=dict(images, source=dict(source, ann_file='trainvalsplit_places205/train_places205.csv')),
    test=dict(images, source=dict(source, ann_file='trainvalsplit_places205/val_places205.csv')),
)
recipes = dict(linear='linear_places_28e')
