# LeJEPA on Shapes: the demo's network with a projector of 16 dimensions and small crops.
_base_ = ['../demo/mocov2plus_shapes_30e.py', '../_base_/views/methods.py']
model = dict(
    projector=dict(out_channels=16, layers=3),
    predictor=None,
    target='student',
    key_views=[0, 1],
    head=dict(_delete_=True, type='LeJEPAHead', weight=0.05, slices=256),
    queue=None,
    data_preprocessor=dict(views={{_base_.shapes_multi_crop}}),
)
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=2e-3, weight_decay=5e-4))
