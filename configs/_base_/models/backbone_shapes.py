# The demo's ResNet, which has a quarter of the usual width.
model = dict(
    backbone=dict(
        type='mmpretrain.ResNet',
        depth=18,
        stem_channels=16,
        base_channels=16,
        norm_cfg=dict(type='SyncBN'),
        norm_eval=False,
        zero_init_residual=False,
    ),
    in_channels=128,
    data_preprocessor=dict(type='ViewPreprocessor', mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25)),
)
