# Speed settings for CPUs. mmairl/engine/speed.py explains each setting.
# bfloat16 is fast only on processors with AVX-512 BF16 or AMX (`lscpu | grep -E 'bf16|amx'`).
fast = dict(
    precision='bfloat16',
    channels_last=True,
    checkpointing=False,
    compile=False,
    fused=True,
)
