# mmpretrain's own class MoCoV3, unmodified, with the data, optimizer and schedule of ../methods/mocov3_r50_300e.py. It shows
# how a model from outside trains and is compared.
_base_ = '../methods/mocov3_r50_300e.py'
model = dict(
    _delete_=True,
    type='mmpretrain.MoCoV3',
    base_momentum=0.01,
    backbone=dict(
        type='mmpretrain.ResNet',
        depth=50,
        norm_cfg=dict(type='mmairl.SyncBN'),
        zero_init_residual=False,
    ),
    neck=dict(
        type='mmpretrain.NonLinearNeck',
        in_channels=2048,
        hid_channels=4096,
        out_channels=256,
        num_layers=2,
        with_bias=False,
        with_last_bn=True,
        with_last_bn_affine=False,
        with_last_bias=False,
        with_avg_pool=True,
        norm_cfg=dict(type='mmairl.SyncBN'),
    ),
    head=dict(
        type='mmpretrain.MoCoV3Head',
        predictor=dict(
            type='mmpretrain.NonLinearNeck',
            in_channels=256,
            hid_channels=4096,
            out_channels=256,
            num_layers=2,
            with_bias=False,
            with_last_bn=False,
            with_last_bn_affine=False,
            with_last_bias=False,
            with_avg_pool=False,
            norm_cfg=dict(type='mmairl.SyncBN'),
        ),
        loss=dict(type='mmpretrain.CrossEntropyLoss', loss_weight=2.0),
        temperature=1.0,
    ),
    data_preprocessor=dict(
        type='mmairl.ViewPreprocessor', mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
)
default_hooks = dict(momentum=None, queue=None)
