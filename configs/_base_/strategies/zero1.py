# ZeRO-1 by torch's `fully_shard`. In every stage, weights, gradients and optimizer state are sharded over the processes.
# docs/how-to/strategies.md compares when each stage shards weights and gradients.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
