# The optimizer's state, the gradients and the weights, the teacher's too, in shards, one for each process.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=3))
