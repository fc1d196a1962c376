"""The import of mmpretrain's models, made safe for whatever else is installed beside them."""

import sys
import warnings
from unittest import mock

import importlib_metadata


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal half.

    That half imports internals of `transformers` which its releases move about, and then takes ResNet down
    with it. mmpretrain decides by looking the package up while it is imported; during that import, and
    only then, the look-up answers that it is not there.
    """
    if 'mmpretrain.models' in sys.modules:
        return
    look_up = importlib_metadata.distribution

    def without_transformers(name: str) -> importlib_metadata.Distribution:
        if name == 'transformers':
            raise importlib_metadata.PackageNotFoundError(name)
        return look_up(name)

    with mock.patch('importlib_metadata.distribution', without_transformers), warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='Fail to import ``MultiScaleDeformable')  # mmcv-lite has no ops
        import mmpretrain.models
    mmpretrain.utils.dependency.distribution = look_up
