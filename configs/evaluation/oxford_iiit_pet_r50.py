# Oxford-IIIT Pets: 37 breeds, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(
        type='OxfordIIITPet',
        root='data/oxford_iiit_pet',
        split='train',
        views=[{{_base_.test_view}}],
    ),
    val=dict(
        type='OxfordIIITPet', root='data/oxford_iiit_pet', split='val', views=[{{_base_.test_view}}]
    ),
    test=dict(
        type='OxfordIIITPet',
        root='data/oxford_iiit_pet',
        split='test',
        views=[{{_base_.test_view}}],
    ),
)
