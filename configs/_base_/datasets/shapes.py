# Shapes, drawn on the spot; the whole set is in memory and the views are made as batched tensor operations.
view = [
    dict(type='RandomResizedCrop', size=48, scale=(0.3, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
]
total_batch_size = 256
train_dataloader = dict(
    num_workers=0,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(type='Shapes', split='train', count=12000, size=48),
)
evaluation = dict(
    train=dict(type='Shapes', split='train', count=12000, size=48),
    test=dict(type='Shapes', split='val', count=2400, size=48),
    batch_size=500,
)
