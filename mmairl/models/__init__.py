"""The model and its parts. Each class is imported from its module on first access, after mmpretrain's backbones."""

import sys
import warnings

import importlib_metadata

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal models.

    The multimodal models import internals of `transformers` that move between releases, in which case not even ResNet can
    be imported. mmpretrain skips them if `transformers` is not installed, and has no other switch. So this function hides
    the package from mmpretrain's check, `importlib_metadata.distribution`, during the import.
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
            message = (
                'Fail to import ``MultiScaleDeformable'  # because mmcv-lite has no compiled ops
            )
            warnings.filterwarnings('ignore', message=message)
            import mmpretrain.models
    finally:
        importlib_metadata.distribution = distribution
    mmpretrain.utils.dependency.distribution = distribution


import_mmpretrain()
