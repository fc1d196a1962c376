# Step 4 from DINO to DINOv2: KoLeo spreads the student's class tokens evenly.
_base_ = 'ibot_sinkhorn_vit_s16_800e.py'
model = dict(koleo=0.1)
