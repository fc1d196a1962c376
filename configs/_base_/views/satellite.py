# The operations after the crop for satellite and aerial images, and the reason for each.
satellite = [
    dict(type='RandomTurn', p=1.0),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.0, hue=0.0),
    dict(type='GaussianBlur', p=0.2, sigma=(0.1, 1.0)),
]
satellite_reasons = [
    'aerial images have no upright direction, so all rotations and mirror images show the same place',
    'sun and haze change brightness and contrast; hue separates vegetation from water, so it is not changed',
    'sensors and the atmosphere differ in sharpness',
]
