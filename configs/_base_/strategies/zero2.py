# torch's ZeRO-2: like ZeRO-1, but gradients are sharded after each accumulated batch.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=2))
