# ImageNet at the benchmark's batch size of 1024. A config adds its views from _base_/views. Set the three paths `root` if
# your images are in another folder.
test_view = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]

total_batch_size = 1024
train_dataloader = dict(
    num_workers=8,
    pin_memory=True,
    drop_last=True,
    sampler=dict(type='ResumableSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='ImageFolder', root='data/imagenet/train'),
)
evaluation = dict(
    train=dict(type='ImageFolder', root='data/imagenet/train', views=[test_view]),
    test=dict(type='ImageFolder', root='data/imagenet/val', views=[test_view]),
    batch_size=256,
    # BYOL selects learning rates on this many training images.
    held_out=10_009 / 1_281_167,
)
