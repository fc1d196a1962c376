# MoCo v2+ with a ViT-L/16 under ZeRO-2 of torch.
_base_ = ['mocov2plus_vit_l16_300e.py', '../_base_/strategies/zero2.py']
