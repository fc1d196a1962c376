# Distill the network that `mmairl demo` trains into one of half the width, with half of the teacher's epochs.
_base_ = 'shapes_half.py'
epochs = 9
model = dict(
    projector=dict(hidden_channels=None, out_channels=128, norm_cfg=None),
    predictor=None,
    target='frozen',
    teacher=dict(
        type='FrozenTeacher',
        backbone=dict(
            type='mmpretrain.ResNet',
            depth=18,
            stem_channels=16,
            base_channels=16,
            init_cfg=dict(type='PretrainedBackbone', checkpoint='work_dirs/demo/epoch_18.pth'),
        ),
    ),
    head=dict(_delete_=True, type='DistillationHead'),
    queue=None,
)
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=epochs))
