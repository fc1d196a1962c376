# The operations after the crop for scanned documents, and the reason for each. There are no flips and rotations: mirrored text
# is not text, and pages are read upright.
documents = [
    dict(type='ColorJitter', p=0.8, brightness=0.3, contrast=0.4, saturation=0.2, hue=0.0),
    dict(type='RandomGrayscale', p=0.3),
    dict(type='GaussianBlur', p=0.3, sigma=(0.1, 1.0)),
]
documents_reasons = [
    'paper yellows, and lamps and scanners differ',
    'photocopies are gray',
    'scans differ in sharpness, and text must stay readable',
]
