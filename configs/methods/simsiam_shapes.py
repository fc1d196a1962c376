# SimSiam on Shapes: the demo's network with SimSiam's projector and a narrow predictor.
_base_ = '../demo/mocov2plus_shapes_30e.py'
model = dict(
    projector=dict(layers=3, last_norm=dict(type='SyncBN', affine=False)),
    predictor=dict(hidden_channels=32),
    target='stop_gradient',
    head=dict(_delete_=True, type='RegressionHead', weight=0.25),
    queue=None,
)
# The loss has a quarter of the usual weight, so the learning rate is several times the usual rate.
optim_wrapper = dict(optimizer=dict(lr=1.0))
