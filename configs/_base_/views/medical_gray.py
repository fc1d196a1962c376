# The operations after the crop for radiographs and other gray medical images, and the reason for each. There are no flips and
# rotations: patients are scanned in standard positions, and left and right show different organs.
medical_gray = [
    # Intensity windows, exposures and devices differ; the images have no color.
    dict(type='ColorJitter', p=0.8, brightness=0.3, contrast=0.4, saturation=0.0, hue=0.0),
    # Devices differ in sharpness, and small findings must stay visible.
    dict(type='GaussianBlur', p=0.2, sigma=(0.1, 1.0)),
]
