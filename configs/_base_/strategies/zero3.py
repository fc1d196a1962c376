# torch's ZeRO-3: like ZeRO-2, but the full weights of a block exist only while the block runs.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=3))
