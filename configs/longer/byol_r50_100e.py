# BYOL for 100 epochs (AIRL's Tab. 6 and 7).
_base_ = '../byol_r50_200e.py'
train_cfg = dict(max_epochs=100)
