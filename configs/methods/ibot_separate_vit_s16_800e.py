# Step 2 from DINO to DINOv2: masked patches have a projector of their own.
_base_ = 'ibot_vit_s16_800e.py'
model = dict(patch_projector={{_base_.model.projector}})
# Both projectors keep their prototypes frozen for one epoch.
custom_hooks = [
    dict(
        type='ScheduleHook',
        values={
            'head.key_temperature': dict(start=0.04, end=0.07, until=30 / 800),
            'projector.frozen': dict(start=1, end=0, until=1 / 800, curve='step'),
            'patch_projector.frozen': dict(start=1, end=0, until=1 / 800, curve='step'),
        },
    )
]
