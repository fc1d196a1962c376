# Supervised training on six kinds of Shapes in 552 steps (12 s on one core), evaluated on six other kinds with 100 labels each.
# The weight decay is fifty times the usual one, so that norms stay small within so few steps.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
known = 'projects/normrescale/known.txt'
new = 'projects/normrescale/new.txt'
view = [
    dict(type='RandomResizedCrop', size=32, scale=(0.3, 1.0)),
    dict(type='RandomFlip', p=0.5),
]
model = dict(
    _delete_=True,
    type='Classifier',
    backbone={{_base_.model.backbone}},
    in_channels=128,
    classes=6,
    data_preprocessor=dict(
        type='ViewPreprocessor',
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        views=[view],
        channels_last=True,
    ),
)
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='NamedClasses',
        names=known,
        dataset=dict(type='Shapes', split='train', count=6000, size=32),
    )
)
evaluation = dict(
    _delete_=True,
    train=dict(
        type='NamedClasses',
        names=new,
        dataset=dict(type='Shapes', split='train', count=1200, size=32),
    ),
    val=dict(
        type='NamedClasses',
        names=new,
        dataset=dict(type='Shapes', split='train', count=2400, size=32, seed=1),
    ),
    test=dict(
        type='NamedClasses',
        names=new,
        dataset=dict(type='Shapes', split='val', count=2400, size=32),
    ),
    batch_size=400,
)
total_batch_size = 64
optim_wrapper = dict(optimizer=dict(lr=0.1, weight_decay=5e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=1, convert_to_iter_based=True),
]
train_cfg = dict(by_epoch=True, max_epochs=12)
default_hooks = dict(momentum=None, checkpoint=dict(interval=12))
recipes = dict(
    linear='projects/normrescale/supervised/linear_few.py',
    finetune='projects/normrescale/supervised/finetune_few.py',
)
