# Weights, gradients and the optimizer's state divided over the processes; docs/how-to/multi_gpu.md compares the stages.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
