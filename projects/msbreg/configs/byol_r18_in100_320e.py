# BYOL, the baseline in Tables 3 and 5: MSBReg with two views and no regularizers.
_base_ = 'msbreg_k2_r18_in100_320e.py'
model = dict(head=dict(terms=[]))
