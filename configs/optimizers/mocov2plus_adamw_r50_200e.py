# MoCo v2+ with torch's AdamW, which none of the papers uses. The learning rate (1.5e-4 per 256 images) and the weight decay
# (0.1) are MoCo v3's.
_base_ = '../mocov2plus_r50_200e.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=6e-4, weight_decay=0.1),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
