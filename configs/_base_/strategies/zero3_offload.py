# ZeRO-3 with the shards and the optimizer step in host memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(
        stage=3,
        offload_optimizer=dict(device='cpu', pin_memory=True),
        offload_param=dict(device='cpu', pin_memory=True),
    ),
)
