# MoCo v2+ with a ViT-L/16, sharded by torch's ZeRO-2.
_base_ = 'mocov2plus_vit_l16_300e.py'
strategy = dict(type='ZeroStrategy', stage=2)
