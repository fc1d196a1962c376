# The same by LARS: no decay or adaptation of batch norm and biases, 1e-6 on weights.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='LARS', lr=26.0, momentum=0.9, weight_decay=1e-6)
)
