# The optimizer's state and the gradients in shards, one for each process.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=2))
