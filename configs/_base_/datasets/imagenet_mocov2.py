# ImageNet, two views, MoCo v2's augmentation.
data_root = 'data/imagenet'
view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0)),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='RandomFlip', p=0.5),
]
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]

total_batch_size = 1024
train_dataloader = dict(
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='ImageFolder', root=data_root + '/train', views=[view, view]),
)
evaluation = dict(
    train=dict(type='ImageFolder', root=data_root + '/train', views=[test_view]),
    test=dict(type='ImageFolder', root=data_root + '/val', views=[test_view]),
    batch_size=256,
)
