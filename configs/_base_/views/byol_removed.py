# BYOL's asymmetric pair of views without some of its operations (BYOL's Fig. 3b).
crop = dict(type='RandomResizedCrop', size=224, scale=(0.08, 1.0))
flip = dict(type='RandomFlip', p=0.5)
jitter = dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
first_end = [dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))]
second_end = [
    dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]

no_grey = [[crop, flip, jitter, *first_end], [crop, flip, jitter, *second_end]]
no_colour = [[crop, flip, *first_end], [crop, flip, *second_end]]
crop_and_blur = [[crop, *first_end], [crop, second_end[0]]]
crop_only = [[crop], [crop]]
