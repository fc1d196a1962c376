# STL-10 at its own 96 pixels, for networks that were trained so. Validation is a part of train.
evaluation = dict(
    train=dict(type='STL10', root='data/stl10', split='train'),
    test=dict(type='STL10', root='data/stl10', split='test'),
    batch_size=256,
)
