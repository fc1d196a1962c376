# Speed settings for GPUs; mmairl/engine/speed.py explains them in the order in which they apply.
fast = dict(
    precision='bfloat16',
    channels_last=True,
    checkpointing=False,
    compile=True,
    fused=True,
)
