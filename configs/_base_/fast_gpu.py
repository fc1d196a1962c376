# How a step is made fast on a GPU; what each line does stands in mmairl/engine/speed.py, in the order in which it acts.
fast = dict(
    precision='bfloat16',
    channels_last=True,
    checkpointing=False,
    compile=True,
    fused=True,
)
