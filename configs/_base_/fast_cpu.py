# Speed settings for CPUs; mmairl/engine/speed.py explains each, in the order in which they apply.
# bfloat16 pays where the processor multiplies it (AVX-512 BF16 or AMX: `lscpu | grep -E 'bf16|amx'`), and is slow elsewhere.
fast = dict(
    precision='bfloat16',
    channels_last=True,
    checkpointing=False,
    compile=False,
    fused=True,
)
