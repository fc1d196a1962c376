# torch's ZeRO-3. The shards are in host memory, and the optimizer step runs on the CPU.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(
        stage=3,
        offload_optimizer=dict(device='cpu', pin_memory=True),
        offload_param=dict(device='cpu', pin_memory=True),
    ),
)
