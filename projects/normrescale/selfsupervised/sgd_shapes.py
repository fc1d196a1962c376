# MoCo v2+ on the demo's images in 561 steps, evaluated with 100 labels of each kind of shape. The weight decay is twenty times
# the usual one, so that norms stay small within so few steps.
_base_ = '../../../configs/demo/mocov2plus_shapes.py'
view = [
    dict(type='RandomResizedCrop', size=28, scale=(0.2, 0.6)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=1.0),
]
model = dict(queue=dict(length=512), data_preprocessor=dict(views=[view, view]))
evaluation = dict(
    train=dict(count=1200),
    val=dict(type='Shapes', split='train', count=2400, size=48, seed=1),
)
total_batch_size = 64
epochs = 3
optim_wrapper = dict(optimizer=dict(lr=0.3, weight_decay=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=1, convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=epochs)
default_hooks = dict(checkpoint=dict(interval=epochs))
recipes = dict(
    linear='projects/normrescale/supervised/linear_few.py',
    finetune='finetune_few_shapes',
)
