# BYOL, MSBReg's baseline on ImageNet: two views and no regularizers.
_base_ = 'msbreg_k2_r50_300e.py'
model = dict(head=dict(terms=[]))
