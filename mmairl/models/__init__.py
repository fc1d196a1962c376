"""The network and its parts; a class is imported when it is asked for. mmpretrain's backbones are imported first."""

import sys
import warnings

import importlib_metadata

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal half.

    That half imports internals of `transformers` that move between its releases; where they have moved, ResNet does not
    import either. mmpretrain leaves the half out where `transformers` is not installed. It asks once, while it is
    imported, through this function, and has no switch for it; so the function is replaced for that long.
    """
    if 'mmpretrain.models' in sys.modules:
        return
    distribution = importlib_metadata.distribution

    def without_transformers(name: str) -> importlib_metadata.Distribution:
        if name == 'transformers':
            raise importlib_metadata.PackageNotFoundError(name)
        return distribution(name)

    importlib_metadata.distribution = without_transformers
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                'ignore', message='Fail to import ``MultiScaleDeformable'
            )  # mmcv-lite has no ops
            import mmpretrain.models
    finally:
        importlib_metadata.distribution = distribution
    mmpretrain.utils.dependency.distribution = distribution


import_mmpretrain()
