# As ZeRO-2, with weights that are whole only while their block runs.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=3))
