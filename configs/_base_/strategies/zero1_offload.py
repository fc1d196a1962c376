# ZeRO-1 with the divided parts and the optimizer's step in the host's memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(stage=1, offload_optimizer=dict(device='cpu', pin_memory=True)),
)
