"""The model and its parts. Each class is imported from its module on first access, after mmpretrain's backbones."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal models.

    The multimodal models import internals of `transformers` that move between releases, in which case not even ResNet can
    be imported. mmpretrain skips them without `transformers`, and has no public switch.
    """
    if 'mmpretrain.models' in sys.modules:
        return
    from mmpretrain.utils import dependency

    dependency.WITH_MULTIMODAL = False
    with without_mmdet(), warnings.catch_warnings():
        message = 'Fail to import ``MultiScaleDeformable'  # mmcv-lite has no compiled ops
        warnings.filterwarnings('ignore', message=message)
        import mmpretrain.models  # noqa: F401


@contextmanager
def without_mmdet() -> Iterator[None]:
    """Hide mmdet's models if mmcv has no ops.

    mmpretrain tries to import them for one class, which fails without ops, in the onedl fork after seconds and a warning.
    """
    hidden = 'mmdet.models'
    if hidden in sys.modules or has_ops():
        yield
        return
    sys.modules[hidden] = None
    try:
        yield
    finally:
        del sys.modules[hidden]


def has_ops() -> bool:
    """Return whether mmcv has its compiled ops, or replacements for them."""
    try:
        import mmcv._ext  # noqa: F401
    except ImportError:  # mmcv-lite, or ops that were compiled for another torch
        return False
    return True


import_mmpretrain()
