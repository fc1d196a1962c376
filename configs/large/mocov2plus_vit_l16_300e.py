# MoCo v2+ with a ViT-L/16: the config of the ViT-S with more and wider layers, in bfloat16 with activation
# checkpointing.
_base_ = '../vit/mocov2plus_vit_s16_300e.py'
model = dict(backbone=dict(arch='large'), projector=dict(in_channels=1024))
fast = dict(precision='bfloat16', checkpointing=True, fused=True)
