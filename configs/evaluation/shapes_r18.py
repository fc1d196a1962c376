# The demo's shapes at their original size. The validation images are a part of the training set.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Shapes', split='train', count=12_000, size=48),
    test=dict(type='Shapes', split='val', count=2_400, size=48),
    batch_size=256,
)
recipes = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
