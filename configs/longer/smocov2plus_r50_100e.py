# S-MoCo v2+ for 100 epochs (Tab. 6 of Huang et al. 2022).
_base_ = '../smocov2plus_r50_200e.py'
train_cfg = dict(max_epochs=100)
