# The operations after the crop for slides under a microscope, and the reason for each. To vary the amounts of stains as well,
# see the function in docs/how-to/data.md.
microscopy = [
    # A slide has no upright direction, so all rotations and mirror images show the same tissue.
    dict(type='RandomTurn', p=1.0),
    # Lamps and exposures differ; hue identifies the stain, so it is not changed.
    dict(type='ColorJitter', p=0.5, brightness=0.2, contrast=0.2, saturation=0.0, hue=0.0),
    # The focus varies across a slide.
    dict(type='GaussianBlur', p=0.5, sigma=(0.1, 1.5)),
]
