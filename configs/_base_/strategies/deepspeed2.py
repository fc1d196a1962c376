# DeepSpeed's ZeRO-2, which shards the optimizer state and the gradients.
strategy = dict(
    type='DeepSpeedStrategy',
    zero_optimization=dict(stage=2, reduce_bucket_size=50_000_000),
)
