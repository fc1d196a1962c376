# The view and batch size for evaluation on the data sets of BYOL's transfer table.
test_view = [
    dict(type='Resize', size=224, interpolation='bicubic'),
    dict(type='CenterCrop', size=224),
]
evaluation = dict(batch_size=256)
