# The views of mocov2.py and byol.py in two parts: a data worker crops each image, and the device applies all other
# operations to the whole batch. A config sets both parts for each view:
#   train_dataloader = dict(dataset=dict(views=[{{_base_.mocov2_crop}}, {{_base_.mocov2_crop}}]))
#   model = dict(data_preprocessor=dict(views=[{{_base_.mocov2_on_device}}, {{_base_.mocov2_on_device}}]))
mocov2_crop = [dict(type='RandomResizedCrop', size=224, scale=(0.2, 1.0))]
mocov2_on_device = [
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)),
    dict(type='RandomFlip', p=0.5),
]

byol_crop = [dict(type='RandomResizedCrop', size=224, scale=(0.08, 1.0))]
flip_to_grey = [
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
    dict(type='RandomGrayscale', p=0.2),
]
solarize = dict(type='Solarize', p=0.2, threshold=128)
symmetric_on_device = [*flip_to_grey, dict(type='GaussianBlur', p=0.5, sigma=(0.1, 2.0)), solarize]
first_on_device = [*flip_to_grey, dict(type='GaussianBlur', p=1.0, sigma=(0.1, 2.0))]
second_on_device = [*flip_to_grey, dict(type='GaussianBlur', p=0.1, sigma=(0.1, 2.0)), solarize]
