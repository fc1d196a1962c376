# ZeRO-3 with the divided parts and the optimizer's step in the host's memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(
        stage=3,
        offload_optimizer=dict(device='cpu', pin_memory=True),
        offload_param=dict(device='cpu', pin_memory=True),
    ),
)
