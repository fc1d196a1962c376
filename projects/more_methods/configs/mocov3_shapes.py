# MoCo v3 on Shapes: the demo's network with the batch in place of the queue.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
custom_imports = dict(imports=['projects.more_methods.mocov3'], allow_failed_imports=False)
model = dict(
    projector=dict(last_norm=dict(type='SyncBN', affine=False)),
    predictor=dict(last_norm=dict(type='SyncBN', affine=False)),
    head=dict(_delete_=True, type='BatchContrastiveHead', temperature=0.2),
    queue=None,
)
