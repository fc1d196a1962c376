# scikit-learn's digits, enlarged to 32 pixels. The validation images are a part of the training set.
_base_ = '../_base_/models/backbone_shapes.py'
evaluation = dict(
    train=dict(type='Digits', split='train', size=32),
    test=dict(type='Digits', split='val', size=32),
    batch_size=256,
)
recipes = dict(linear='linear_shapes_20e', finetune='finetune_shapes')
