# An error that gives the reason and names zero3, which shards the weights as well.
strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=3))
