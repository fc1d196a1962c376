# The model from which all frameworks inherit: a ResNet-50 in torchvision's layout, without zero-initialized residual
# blocks. Its other settings are MoCo v1's: a linear projector, batch norm as on eight GPUs with shuffled keys, and
# one view as query.
model = dict(
    type='Siamese',
    backbone=dict(
        type='mmpretrain.ResNet',
        depth=50,
        norm_cfg=dict(type='SplitBN', replicas=8),
        norm_eval=False,
        frozen_stages=-1,
        zero_init_residual=False,
    ),
    projector=dict(type='MLPNeck', in_channels=2048, hidden_channels=None, out_channels=128),
    target='teacher',
    teacher_predictor=False,
    symmetric=False,
    shuffle_bn=True,
    head=dict(type='ContrastiveHead', temperature=0.07),
    queue=dict(type='KeyQueue', length=65536, start='noise'),
    data_preprocessor=dict(
        type='ViewPreprocessor', mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
)
