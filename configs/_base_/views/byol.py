# BYOL's augmentation: the symmetric form of Huang et al. 2022 (Tab. 5), their simpler forms without the last one to four
# operations (Fig. 5), and the asymmetric pair of views of BYOL's own paper.
crop_flip = [
    dict(type='RandomResizedCrop', size=224, scale=(0.08, 1.0)),
    dict(type='RandomFlip', p=0.5),
]
crop_to_jitter = [
    *crop_flip,
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
]
crop_to_grey = [*crop_to_jitter, dict(type='RandomGrayscale', p=0.2)]
crop_to_blur = [*crop_to_grey, dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0))]
symmetric_view = [*crop_to_blur, dict(type='Solarize', p=0.2, threshold=128)]

first_view = [*crop_to_grey, dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))]
second_view = [
    *crop_to_grey,
    dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]
