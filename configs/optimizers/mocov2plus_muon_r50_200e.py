# MoCo v2+ with timm's Muon. Its steps are as large as AdamW's, so learning rate and weight decay are those of the AdamW
# config.
_base_ = '../mocov2plus_r50_200e.py'
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True, type='Muon', lr=6e-4, weight_decay=0.1, momentum=0.95, nesterov=True
    ),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
