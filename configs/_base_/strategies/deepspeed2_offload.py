# DeepSpeed's ZeRO-2 with the optimizer state and the optimizer step in host memory.
strategy = dict(
    type='DeepSpeedStrategy',
    zero_optimization=dict(
        stage=2,
        reduce_bucket_size=50_000_000,
        offload_optimizer=dict(device='cpu', pin_memory=True),
    ),
)
