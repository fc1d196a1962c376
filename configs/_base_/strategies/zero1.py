# Weights, gradients and the optimizer's state divided over the processes; docs/scale.md compares the stages.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
