# ZeRO-2 with the optimizer's state and step in the host's memory.
strategy = dict(
    type='ZeroStrategy', zero_optimization=dict(stage=2, offload_optimizer=dict(device='cpu', pin_memory=True))
)
