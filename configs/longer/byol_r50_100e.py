# BYOL for 100 epochs (Tab. 6 and Fig. 6 of Huang et al. 2022).
_base_ = '../byol_r50_200e.py'
train_cfg = dict(max_epochs=100)
