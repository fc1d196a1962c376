# Like ZeRO-2, but full weights exist only while their block runs.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=3))
