# Two crops of 224 pixels and six of 96 (SwAV, DINO). The large ones have the colours of BYOL's asymmetric pair, and the small
# ones blur half of the time.
large_crop = dict(type='RandomResizedCrop', size=224, scale=(0.25, 1.0))
small_crop = dict(type='RandomResizedCrop', size=96, scale=(0.05, 0.25))
crop_to_grey_colours = [
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
]
first_large = [large_crop, *crop_to_grey_colours, dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))]
second_large = [
    large_crop,
    *crop_to_grey_colours,
    dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0)),
    dict(type='Solarize', p=0.2, threshold=128),
]
small_view = [small_crop, *crop_to_grey_colours, dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0))]
multi_crop = [first_large, second_large, *[small_view] * 6]
# The same for a run on Shapes: two crops of 32 pixels and four of 16, grey.
shapes_colours = [
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=1.0),
]
shapes_large = [dict(type='RandomResizedCrop', size=32, scale=(0.2, 0.6)), *shapes_colours]
shapes_small = [dict(type='RandomResizedCrop', size=16, scale=(0.05, 0.2)), *shapes_colours]
shapes_multi_crop = [shapes_large, shapes_large, *[shapes_small] * 4]
