# Tab. 5a: the target is an average that begins at 0.999 and, as BYOL's, ends at 1.
_base_ = 'byol_r50_300e.py'
default_hooks = dict(momentum=dict(base=0.999))
