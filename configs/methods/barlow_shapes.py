# Barlow Twins on Shapes: the demo's network with an expander instead of the projector.
_base_ = '../demo/mocov2plus_shapes.py'
model = dict(
    projector=dict(out_channels=256, layers=3, last_bias=False),
    predictor=None,
    target='student',
    symmetric=False,
    head=dict(_delete_=True, type='BarlowTwinsHead', scale=0.1),
    queue=None,
)
optim_wrapper = dict(optimizer=dict(lr=0.01))  # the loss is a sum over 256 dimensions
