# The optimizer's state in shards, one for each process: docs/zero.md says what each stage saves and asks for.
strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=1))
