# Step 2 from MoCo v2 to BYOL (Fig. 2 of Huang et al. 2022, third point): add a predictor to the student, which makes the
# networks asymmetric.
__method__ = 'mocov2_syncbn_predictor'
_base_ = 'mocov2_syncbn_r50_200e.py'
model = dict(
    predictor=dict(
        type='MLPNeck',
        in_channels=256,
        hidden_channels=4096,
        out_channels=256,
        norm_cfg=dict(type='SyncBN'),
    )
)
