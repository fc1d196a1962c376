# The parts that all frameworks share: ResNet-50 and the two-layer MLPs of BYOL (facts: one network, a few factors).
norm = dict(type='SyncBN')

model = dict(
    type='Siamese',
    backbone=dict(
        type='mmpretrain.ResNet', depth=50, norm_cfg=norm, norm_eval=False, frozen_stages=-1, zero_init_residual=False
    ),
    projector=dict(type='MLPNeck', in_channels=2048, hidden_channels=4096, out_channels=256, norm_cfg=norm),
    predictor=dict(type='MLPNeck', in_channels=256, hidden_channels=4096, out_channels=256, norm_cfg=norm),
    teacher_predictor=False,
    symmetric=True,
    head=dict(type='ContrastiveHead', temperature=0.2),
    queue=dict(type='KeyQueue', length=65536, start='noise'),
    data_preprocessor=dict(type='ViewPreprocessor', mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
)
