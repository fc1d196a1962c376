# ZeRO-1 by torch's `fully_shard`. Between steps, weights and optimizer state are sharded over the processes. In a step, each
# process holds full weights from their first use to the end of the backward pass, and full gradients until the last
# accumulated batch.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
