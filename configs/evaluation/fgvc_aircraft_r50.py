# FGVC-Aircraft: 100 variants of aircraft, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
images = dict(
    type='PublicImages',
    metric='mean per class',
    views=[{{_base_.test_view}}],
    source=dict(type='FGVCAircraft', data_root='data/fgvc_aircraft/fgvc-aircraft-2013b'),
)
evaluation = dict(
    train=dict(images, split='train'),
    val=dict(images, split='val'),
    test=dict(images, split='test'),
)
