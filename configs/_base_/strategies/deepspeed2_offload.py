# DeepSpeed's ZeRO-2. The optimizer state is in host memory, and the optimizer step runs on the CPU.
strategy = dict(
    type='DeepSpeedStrategy',
    zero_optimization=dict(
        stage=2,
        reduce_bucket_size=50_000_000,
        offload_optimizer=dict(device='cpu', pin_memory=True),
    ),
)
