# The demo's network and data with InfoNCEHead, the loss of BYOL's Table 5, for collapse.py.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
model = dict(head=dict(_delete_=True, type='InfoNCEHead', alpha=0.1, beta=0.0), queue=None)
optim_wrapper = dict(optimizer=dict(lr=0.1))
default_hooks = dict(momentum=dict(base=0.99))
