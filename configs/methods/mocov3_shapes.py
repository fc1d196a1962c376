# MoCo v3 on Shapes: the demo's network with negatives from the batch instead of the queue.
_base_ = '../demo/mocov2plus_shapes_30e.py'
model = dict(
    projector=dict(last_norm=dict(type='SyncBN', affine=False)),
    predictor=dict(last_norm=dict(type='SyncBN', affine=False)),
    head=dict(_delete_=True, type='BatchContrastiveHead', temperature=0.2),
    queue=None,
)
