# FGVC-Aircraft: 100 variants of aircraft, scored by mean accuracy per class.
_base_ = ['../_base_/models/backbone_r50.py', '../_base_/evaluation/transfer_view.py']
evaluation = dict(
    train=dict(
        type='FGVCAircraft', root='data/fgvc_aircraft', split='train', views=[{{_base_.test_view}}]
    ),
    val=dict(
        type='FGVCAircraft', root='data/fgvc_aircraft', split='val', views=[{{_base_.test_view}}]
    ),
    test=dict(
        type='FGVCAircraft', root='data/fgvc_aircraft', split='test', views=[{{_base_.test_view}}]
    ),
)
