"""The network and its parts. Classes are imported on first access, after mmpretrain's backbones."""

import sys
import warnings

import importlib_metadata

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal half.

    That half imports internals of `transformers` that move between releases, and then even ResNet cannot be imported.
    mmpretrain skips it if `transformers` is not installed. It has no switch, so this function hides the package from
    its check, `importlib_metadata.distribution`, during the import.
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
            message = 'Fail to import ``MultiScaleDeformable'  # mmcv-lite has no ops
            warnings.filterwarnings('ignore', message=message)
            import mmpretrain.models
    finally:
        importlib_metadata.distribution = distribution
    mmpretrain.utils.dependency.distribution = distribution


import_mmpretrain()
