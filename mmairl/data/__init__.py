"""Data sets, augmentations, and the order in which images are seen; a class that a config names is found in its file."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.data', name)
