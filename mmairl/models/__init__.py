"""The network and its parts; a class is imported when it is asked for."""

from mmairl.models.platform import import_mmpretrain
from mmairl.registry import class_of

import_mmpretrain()


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)
