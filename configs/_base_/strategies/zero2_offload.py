# torch's ZeRO-2. The shards are in host memory, and the optimizer step runs on the CPU.
strategy = dict(
    type='ZeroStrategy',
    zero_optimization=dict(stage=2, offload_optimizer=dict(device='cpu', pin_memory=True)),
)
