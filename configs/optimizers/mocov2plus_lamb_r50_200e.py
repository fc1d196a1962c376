# MoCo v2+ with mmpretrain's LAMB. None of the papers uses it. The rate is a common choice for LAMB at a batch of 1024.
_base_ = '../mocov2plus_r50_200e.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='mmpretrain.Lamb', lr=0.005, weight_decay=0.02),
    paramwise_cfg=dict(
        norm_decay_mult=0.0, bias_decay_mult=0.0
    ),  # LAMB adapts the parameters that it decays
)
