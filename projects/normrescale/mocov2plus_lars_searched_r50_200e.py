# MoCo v2+ with LARS at 2.4 times its published learning rate, the lowest of the rates that three searches by k-NN selected.
_base_ = '../../configs/mocov2plus_lars_r50_200e.py'
optim_wrapper = dict(optimizer=dict(lr=2.9))
