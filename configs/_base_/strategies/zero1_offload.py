# ZeRO-1 with the shards and the optimizer step in host memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(stage=1, offload_optimizer=dict(device='cpu', pin_memory=True)),
)
