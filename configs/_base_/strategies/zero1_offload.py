# ZeRO-1 with the optimizer's state and step in the host's memory.
strategy = dict(
    type='ZeroStrategy', zero_optimization=dict(stage=1, offload_optimizer=dict(device='cpu', pin_memory=True))
)
