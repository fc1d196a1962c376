# ZeRO-1 by torch's `fully_shard`. In every ZeRO stage (1 to 3), weights, gradients and optimizer state are sharded over the
# processes. docs/how-to/strategies.md compares when each ZeRO stage shards weights and gradients.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
