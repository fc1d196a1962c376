# BYOL's Tab. 5a: the target is a moving average of the student. Its momentum rises from 0.9 to 1, as in BYOL.
_base_ = 'byol_r50_300e.py'
default_hooks = dict(momentum=dict(base=0.9))
