# Oxford-IIIT Pets: 37 breeds, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    metric='mean per class',
    views=[{{_base_.test_view}}],
    source=dict(type='OxfordIIITPet', data_root='data/oxford_iiit_pet/oxford-iiit-pet'),
)
evaluation = dict(
    train=dict(images, split='trainval'), test=dict(images, split='test'), held_out=740 / 3_680
)
