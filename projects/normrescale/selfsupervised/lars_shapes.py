# sgd_shapes.py with LARS: batch norm and biases are neither decayed nor adapted, and the decay of weights is 1e-6.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='LARS', lr=8.0, momentum=0.9, weight_decay=1e-6)
)
