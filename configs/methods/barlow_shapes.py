# Barlow Twins on Shapes: the demo's network with an expander, a projector that is wider than the features.
_base_ = '../demo/mocov2plus_shapes_30e.py'
model = dict(
    projector=dict(out_channels=256, layers=3, last_bias=False),
    predictor=None,
    target='student',
    symmetric=False,
    head=dict(_delete_=True, type='BarlowTwinsHead', scale=0.1),
    queue=None,
)
# The loss is large, because it is a sum over 256 dimensions, so the learning rate is low.
optim_wrapper = dict(optimizer=dict(lr=0.01))
