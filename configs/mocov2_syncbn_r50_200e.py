# Step 1 from MoCo v2 to BYOL (Fig. 2 of Huang et al. 2022, second point): SyncBN in the backbone, and BYOL's wider
# projector, with SyncBN in its hidden layer.
__method__ = 'mocov2_syncbn'
_base_ = 'mocov2_r50_200e.py'
norm = dict(type='SyncBN')
model = dict(
    backbone=dict(norm_cfg=dict(_delete_=True, **norm)),
    projector=dict(hidden_channels=4096, out_channels=256, norm_cfg=norm),
    shuffle_bn=False,
)
assumptions = dict(
    projector="with SyncBN, the projector also gets BYOL's widths of 4096 and 256; the paper only states that it gets "
    'batch norm'
)
