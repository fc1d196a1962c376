# sgd_shapes.py with torch's AdamW.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=0.00325, weight_decay=0.1),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
