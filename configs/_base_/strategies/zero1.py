# Shards weights, gradients and optimizer state over the processes; docs/how-to/multi_gpu.md compares the stages.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
