"""Data sets, augmentations, and the order in which images are seen."""
