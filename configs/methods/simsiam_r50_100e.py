# SimSiam: MoCo v2's views, batch 512, SGD with learning rate 0.05 per 256 images and a cosine without warm-up, 100 epochs.
# The paper keeps the predictor's learning rate constant. In this config, it follows the cosine, like the rate of the other
# layers.
__method__ = 'simsiam'
_base_ = '../mocov2plus_r50_200e.py'
model = dict(
    projector=dict(
        hidden_channels=2048,
        out_channels=2048,
        layers=3,
        last_norm=dict(type='SyncBN', affine=False),
        last_bias=False,
    ),
    predictor=dict(in_channels=2048, hidden_channels=512, out_channels=2048),
    target='stop_gradient',
    # With this weight, the loss is -cos / 2 per direction plus a constant.
    head=dict(_delete_=True, type='RegressionHead', weight=0.25),
    queue=None,
)
total_batch_size = 512
auto_scale_lr = dict(base_batch_size=512)
optim_wrapper = dict(optimizer=dict(lr=0.1))
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0.0, convert_to_iter_based=True)]
train_cfg = dict(max_epochs=100)
