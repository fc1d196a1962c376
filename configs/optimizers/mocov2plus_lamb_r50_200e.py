# MoCo v2+ with mmpretrain's LAMB, which none of the papers uses. The learning rate is a common choice for LAMB at batch
# 1024.
_base_ = '../mocov2plus_r50_200e.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='mmpretrain.Lamb', lr=0.005, weight_decay=0.02),
    # LAMB adapts only the parameters that have weight decay. Norms and biases have none, so that they are not adapted.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
