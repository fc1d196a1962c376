# SwAV on Shapes: the demo's network with 128 prototypes and small crops.
_base_ = ['../demo/mocov2plus_shapes_30e.py', '../_base_/views/methods.py']
model = dict(
    predictor=None,
    target='stop_gradient',
    key_views=[0, 1],
    head=dict(_delete_=True, type='SwAVHead', channels=64, prototypes=128),
    queue=None,
    data_preprocessor=dict(views={{_base_.shapes_multi_crop}}),
)
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={'head.frozen': dict(start=1, end=0, until=1 / 30, curve='step')},
    ),
]
optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=2e-3, weight_decay=5e-4))
