"""Data sets, augmentations, and the order in which images are seen; a class that a config names is found in its module."""

from mmairl.data import folders, packed, published, sampler, shapes, subsets, transforms, views, workers

__all__ = ['folders', 'packed', 'published', 'sampler', 'shapes', 'subsets', 'transforms', 'views', 'workers']
