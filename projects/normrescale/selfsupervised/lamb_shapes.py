# sgd_shapes.py with mmpretrain's LAMB, which adapts the parameters that it decays.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='mmpretrain.Lamb', lr=0.0224, weight_decay=0.02),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
