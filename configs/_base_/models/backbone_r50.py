# The model of an evaluation config, and the statistics of its input images. The checkpoint to evaluate is loaded into this
# model.
model = dict(
    backbone=dict(
        type='mmpretrain.ResNet',
        depth=50,
        norm_cfg=dict(type='SyncBN'),
        norm_eval=False,
        frozen_stages=-1,
        zero_init_residual=False,
    ),
    in_channels=2048,
    data_preprocessor=dict(
        type='ViewPreprocessor', mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
)
