# DeepSpeed's ZeRO-3 is not supported. This config raises an error that states the reason, and zero3 as the alternative.
strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=3))
