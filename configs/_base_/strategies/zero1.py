# torch's ZeRO-1, which shards weights, gradients and optimizer state over the processes. docs/how-to/strategies.md
# compares the stages.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
