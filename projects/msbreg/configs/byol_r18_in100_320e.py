# BYOL as MSBReg's baseline (Tab. 3 and 5): K = 2 without regularisers.
_base_ = 'msbreg_k2_r18_in100_320e.py'
model = dict(head=dict(terms=[]))
