# Fine-tuning with 10 % of ImageNet's labels by MSBReg's recipe: the classifier has a learning rate of 0.25, and the
# backbone has a thousandth of this rate.
_base_ = 'semi_1pct.py'
model = dict(frozen=False, backbone=dict(norm_cfg=dict(type='SyncBN'), norm_eval=False))
optim_wrapper = dict(
    optimizer=dict(lr=0.25), paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=1e-3)))
)
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=0,
        end=30,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=30)
assumptions = dict(
    semi="with 10 % of the labels, training takes 30 epochs, the shorter of BYOL's two choices, and the learning rate "
    'follows a cosine; MSBReg states no number of epochs'
)
