# The view and batch size for evaluation on ImageNet.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(batch_size=256)
