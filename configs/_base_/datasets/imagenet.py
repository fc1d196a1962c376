# ImageNet at the benchmark's batch size of 1024. A config adds its views from _base_/views. Set the three paths `root` if
# your images are in another folder.
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
    train=dict(type='ImageFolder', root='data/imagenet/train'),
    test=dict(type='ImageFolder', root='data/imagenet/val'),
    batch_size=256,
    # BYOL selects learning rates on this many training images.
    held_out=10_009 / 1_281_167,
)
