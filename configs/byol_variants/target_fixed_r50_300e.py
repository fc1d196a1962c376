# BYOL's Tab. 5a: the target is a fixed random network.
_base_ = 'byol_r50_300e.py'
default_hooks = dict(momentum=dict(base=1.0, schedule='constant'))
