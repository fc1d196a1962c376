# BYOL as MSBReg's baseline on ImageNet: K = 2 without regularisers.
_base_ = 'msbreg_k2_r50_300e.py'
model = dict(head=dict(terms=[]))
