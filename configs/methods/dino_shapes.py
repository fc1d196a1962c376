# DINO on Shapes: the demo's network with a narrow projector and 256 prototypes. The keys have a lower temperature than
# usual, because the run is short.
_base_ = '../demo/mocov2plus_shapes_30e.py'
model = dict(
    projector=dict(type='PrototypeNeck', out_channels=16, layers=3, prototypes=256),
    predictor=None,
    head=dict(_delete_=True, type='DINOHead', prototypes=256, key_temperature=0.02),
    queue=None,
)
optim_wrapper = dict(optimizer=dict(lr=0.1))
default_hooks = dict(momentum=dict(base=0.99))
