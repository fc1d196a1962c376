# iNaturalist 2018: 8 142 species, scored by top-1 accuracy on the official validation list. The validation images are a
# part of the training set. docs/how-to/data.md shows how to convert the official JSON files to lists.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
images = dict(type='PublicImages')
source = dict(type='CustomDataset', data_root='data/inaturalist18')
evaluation = dict(
    train=dict(images, source=dict(source, ann_file='train2018.txt')),
    test=dict(images, source=dict(source, ann_file='val2018.txt')),
)
recipes = dict(linear='linear_inat_84e')
