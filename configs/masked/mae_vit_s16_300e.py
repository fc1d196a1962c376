# MAE with a ViT-S/16. mmpretrain has no schedule for it, so this one is ours: that of the ViT-B/16, with a decoder of half
__method__ = 'mae'
# the width and depth.
_base_ = 'mae_vit_b16_300e.py'
model = dict(
    backbone=dict(arch='deit-small'),
    neck=dict(embed_dim=384, decoder_embed_dim=256, decoder_depth=4, decoder_num_heads=8),
)
