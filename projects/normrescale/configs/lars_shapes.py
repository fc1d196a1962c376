# The same with LARS: no L2 on BN and biases, 1e-6 on weights. What adds to a norm is the sum of squared relative steps;
# a rate of 16 makes it the paper's in a hundredth of the steps.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(optimizer=dict(_delete_=True, type='LARS', lr=16.0, momentum=0.9, weight_decay=1e-6))
