"""Data sets, augmentations and samplers."""
