# The view of the transfer table's sets (BYOL), and the batch.
test_view = [
    dict(type='Resize', size=224, interpolation='bicubic'),
    dict(type='CenterCrop', size=224),
]
evaluation = dict(batch_size=256)
