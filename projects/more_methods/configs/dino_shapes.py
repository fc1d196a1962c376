# DINO on Shapes: the demo's network with 256 prototypes behind the projector.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
custom_imports = dict(imports=['projects.more_methods.dino'], allow_failed_imports=False)
model = dict(
    projector=dict(type='PrototypeNeck', layers=3, prototypes=256),
    predictor=None,
    head=dict(_delete_=True, type='DINOHead', prototypes=256),
    queue=None,
)
