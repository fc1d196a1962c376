# DeepSpeed's ZeRO-1, which shards the optimizer state. docs/how-to/strategies.md compares the strategies.
strategy = dict(
    type='DeepSpeedStrategy',
    zero_optimization=dict(stage=1, reduce_bucket_size=50_000_000),
)
