# mmpretrain's own class BarlowTwins, unmodified, with the data, optimizer and schedule of ../methods/barlow_r50_1000e.py.
_base_ = '../methods/barlow_r50_1000e.py'
model = dict(
    _delete_=True,
    type='mmpretrain.BarlowTwins',
    backbone=dict(
        type='mmpretrain.ResNet',
        depth=50,
        norm_cfg=dict(type='mmairl.SyncBN'),
        zero_init_residual=True,
    ),
    neck=dict(
        type='mmpretrain.NonLinearNeck',
        in_channels=2048,
        hid_channels=8192,
        out_channels=8192,
        num_layers=3,
        with_last_bn=False,
        with_last_bn_affine=False,
        with_avg_pool=True,
        norm_cfg=dict(type='mmairl.SyncBN'),
        init_cfg=dict(type='Kaiming', distribution='uniform', layer=['Linear']),
    ),
    head=dict(
        type='mmpretrain.LatentCrossCorrelationHead',
        in_channels=8192,
        loss=dict(type='mmpretrain.CrossCorrelationLoss'),
    ),
    data_preprocessor=dict(
        type='mmairl.ViewPreprocessor', mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
)
default_hooks = dict(momentum=None, queue=None)
