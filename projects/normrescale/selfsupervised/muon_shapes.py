# sgd_shapes.py with timm's Muon, whose steps are as large as AdamW's.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True, type='Muon', lr=3.2e-3, weight_decay=0.1, momentum=0.95, nesterov=True
    ),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
