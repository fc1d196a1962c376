# iBOT with a ViT-S/16, as in its release: DINO with masked patches in the student's large crops, and a loss on these patches.
# Patches share the projector with class tokens.
__method__ = 'ibot'
_base_ = 'dino_vit_s16_800e.py'
model = dict(masking=dict(type='BlockMasking'))
assumptions = dict(
    patch_center="the center of the patch targets is the mean over masked patches, as in DINOv2; iBOT's release uses all "
    'patches'
)
