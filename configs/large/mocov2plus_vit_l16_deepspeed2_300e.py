# MoCo v2+ with a ViT-L/16, sharded by DeepSpeed's ZeRO-2.
_base_ = ['mocov2plus_vit_l16_300e.py', '../_base_/strategies/deepspeed2.py']
