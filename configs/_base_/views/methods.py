# The views of the other methods, as in their releases, except that the release of DINO has eight small crops for a ResNet-50.
# Crops are resized bilinearly, as in all configs of mmairl.
flip = dict(type='RandomFlip', p=0.5)
jitter = dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
strong_jitter = dict(
    type='ColorJitter', p=0.8, brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2
)
grey = dict(type='RandomGrayscale', p=0.2)
blur = dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))
blur_half = dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0))
blur_tenth = dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0))
solarize = dict(type='Solarize', p=0.2, threshold=128)
# The operations after the crop: for the two views of BYOL's asymmetric pair, for small crops, for LeJEPA and for SwAV.
first, second = [flip, jitter, grey, blur], [flip, jitter, grey, blur_tenth, solarize]
small, same, swav = (
    [flip, jitter, grey, blur_half],
    [flip, jitter, grey, blur_half, solarize],
    [flip, strong_jitter, grey, blur_half],
)

crop = dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))
mocov3_r50 = [[crop, *first], [crop, *second]]

# These methods use two large crops and six to ten small crops.
large, part = dict(crop, scale=(0.4, 1.0)), dict(crop, size=96, scale=(0.05, 0.4))
dino_vit = [[large, *first], [large, *second], *[[part, *small]] * 8]
large, part = dict(crop, scale=(0.25, 1.0)), dict(crop, size=96, scale=(0.05, 0.25))
ibot = [[large, *first], [large, *second], *[[part, *small]] * 10]
large, part = dict(crop, scale=(0.32, 1.0)), dict(crop, size=96, scale=(0.05, 0.32))
dinov2 = [[large, *first], [large, *second], *[[part, *small]] * 8]
large, part = dict(crop, scale=(0.14, 1.0)), dict(crop, size=96, scale=(0.05, 0.14))
dino_r50 = [[large, *first], [large, *second], *[[part, *small]] * 6]
swav_r50 = [*[[large, *swav]] * 2, *[[part, *swav]] * 6]
large, part = dict(crop, scale=(0.3, 1.0)), dict(crop, size=98, scale=(0.05, 0.3))
lejepa = [*[[large, *same]] * 2, *[[part, *same]] * 6]

# On Shapes, views are gray: two crops of 32 pixels and four of 16.
shapes_colours = [
    flip,
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=1.0),
]
shapes_large = [dict(type='RandomResizedCrop', size=32, scale=(0.2, 0.6)), *shapes_colours]
shapes_small = [dict(type='RandomResizedCrop', size=16, scale=(0.05, 0.2)), *shapes_colours]
shapes_multi_crop = [shapes_large, shapes_large, *[shapes_small] * 4]
