# The operations after the crop for scanned documents, and the reason for each. There are no flips and rotations: mirrored text
# is not text, and pages are read upright.
documents = [
    # Paper yellows, and lamps and scanners differ.
    dict(type='ColorJitter', p=0.8, brightness=0.3, contrast=0.4, saturation=0.2, hue=0.0),
    # Photocopies are gray.
    dict(type='RandomGrayscale', p=0.3),
    # Scans differ in sharpness, and text must stay readable.
    dict(type='GaussianBlur', p=0.3, sigma=(0.1, 1.0)),
]
