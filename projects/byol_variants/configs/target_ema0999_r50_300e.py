# Tab. 5a: the target is an average at 0.999.
_base_ = 'byol_r50_300e.py'
default_hooks = dict(momentum=dict(base=0.999, schedule='constant'))
