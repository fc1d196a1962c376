# The operations after the crop for satellite and aerial images, and the reason for each.
satellite = [
    # Aerial images have no upright direction, so all rotations and mirror images show the same place.
    dict(type='RandomTurn', p=1.0),
    # Sun and haze change brightness and contrast; hue separates vegetation from water, so it is not changed.
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.0, hue=0.0),
    # Sensors and the atmosphere differ in sharpness.
    dict(type='GaussianBlur', p=0.2, sigma=(0.1, 1.0)),
]
