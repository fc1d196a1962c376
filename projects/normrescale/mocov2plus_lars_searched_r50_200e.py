# MoCo v2+ with LARS at the rate that searches by k-NN took: 2.4 times the published one.
_base_ = '../../configs/mocov2plus_lars_r50_200e.py'
optim_wrapper = dict(optimizer=dict(lr=2.9))
