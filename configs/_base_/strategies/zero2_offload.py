# ZeRO-2 with the divided parts and the optimizer's step in the host's memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(stage=2, offload_optimizer=dict(device='cpu', pin_memory=True)),
)
