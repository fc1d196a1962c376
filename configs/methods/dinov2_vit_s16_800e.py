# Step 5 from DINO to DINOv2: DINOv2's settings of the optimizer, the teacher and the masks, for 1024 images per step. The
# learning rate is 4e-3 sqrt(batch / 1024), and lower in early layers and in the patch embedding. Gradients are clipped
# separately in the backbone and in each projector. Masks have evenly spread fractions.
_base_ = 'ibot_koleo_vit_s16_800e.py'
model = dict(masking=dict(strata=True, least=4, most=0.5))
optim_wrapper = dict(
    optimizer=dict(lr=4e-3),
    paramwise_cfg=dict(layer_decay=0.9, patch_embed=0.2),
    clip_grad=dict(per='part'),
)
default_hooks = dict(momentum=dict(base=0.992))
