"""Data sets, augmentations and samplers. Each class is imported from its module on first access."""

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.data', name)
