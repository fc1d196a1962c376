# MoCo v2's augmentation.
mocov2_view = [
    dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0)),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='RandomFlip', p=0.5),
]
