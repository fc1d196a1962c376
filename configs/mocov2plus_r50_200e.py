# MoCo v2+ (ECCV 2022, Fig. 1c): SyncBN, a predictor on the student, ascending momentum, symmetric InfoNCE.
_base_ = [
    '_base_/models/siamese_r50.py',
    '_base_/datasets/imagenet_mocov2.py',
    '_base_/schedules/sgd_200e.py',
    '_base_/default_runtime.py',
]
