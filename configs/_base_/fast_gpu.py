# Speed settings for GPUs. mmairl/engine/speed.py explains each setting.
fast = dict(
    precision='bfloat16',
    channels_last=True,
    checkpointing=False,
    compile=True,
    fused=True,
)
