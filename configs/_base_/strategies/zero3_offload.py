# ZeRO-3 with the optimizer's state and step, and the weights that no layer needs at the moment, in the host's memory.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(
        stage=3,
        offload_optimizer=dict(device='cpu', pin_memory=True),
        offload_param=dict(device='cpu', pin_memory=True),
    ),
)
