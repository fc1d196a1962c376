# Step 3 from DINO to DINOv2: the Sinkhorn algorithm balances the targets of class tokens and patches, instead of centers.
_base_ = 'ibot_separate_vit_s16_800e.py'
model = dict(head=dict(targets='sinkhorn'))
