# Your own images in train/CLASS and val/CLASS folders; validation is a part of train. Set evaluation.train.root and
# evaluation.test.root, or link the folders to data/images.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]
evaluation = dict(
    train=dict(type='ImageFolder', root='data/images/train', views=[test_view]),
    test=dict(type='ImageFolder', root='data/images/val', views=[test_view]),
    batch_size=256,
)
