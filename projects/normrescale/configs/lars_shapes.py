# The same with LARS: no L2 on BN and biases, 1e-6 on weights. What adds to a norm is the sum of the squared relative steps; a
# rate of 8 (the paper's is 0.3 per 256 images) lets norms grow in 2 760 steps as they do in the paper's 250 000.
_base_ = 'sgd_shapes.py'
optim_wrapper = dict(optimizer=dict(_delete_=True, type='LARS', lr=8.0, momentum=0.9, weight_decay=1e-6))
