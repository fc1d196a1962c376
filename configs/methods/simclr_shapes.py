# SimCLR on Shapes: the demo's network with NT-Xent over the batch. The config for ImageNet is
# byol_variants/simclr_r50_1000e.py.
_base_ = '../demo/mocov2plus_shapes_30e.py'
model = dict(
    predictor=None,
    target='student',
    head=dict(_delete_=True, type='InfoNCEHead', alpha=0.2, beta=1.0),
    queue=None,
)
