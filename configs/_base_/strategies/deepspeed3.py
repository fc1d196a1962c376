# Not supported: raises an error that gives the reason and the alternative, zero3.
strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=3))
