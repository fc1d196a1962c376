# iNaturalist 2018: 8 142 species, scored by top-1 accuracy on the official validation list. The validation images are a
# part of the training set.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/imagenet_view.py']
evaluation = dict(
    train=dict(
        type='INaturalist2018',
        root='data/inaturalist18',
        split='train',
        views=[{{_base_.test_view}}],
    ),
    test=dict(
        type='INaturalist2018', root='data/inaturalist18', split='val', views=[{{_base_.test_view}}]
    ),
)
recipes = dict(linear='linear_inat_84e')
