# MoCo v2+ with a ViT-L/16, sharded by DeepSpeed's ZeRO-2.
_base_ = 'mocov2plus_vit_l16_300e.py'
strategy = dict(type='DeepSpeedStrategy', stage=2, reduce_bucket_size=50_000_000)
