"""The model and its parts. Each class is imported from its module on first access, after mmpretrain's backbones."""

import functools
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import importlib_metadata

from mmairl.registry import class_of


def __getattr__(name: str) -> type:
    return class_of('mmairl.models', name)


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal models.

    The multimodal models import internals of `transformers` that move between releases, in which case not even ResNet can
    be imported. mmpretrain skips them if `transformers` is not installed, and has no other switch. So this function hides
    the package from mmpretrain's check during the import. The check is `importlib_metadata.distribution`, and in the
    onedl fork `importlib.metadata.distribution`.
    """
    if 'mmpretrain.models' in sys.modules:
        return
    with (
        without_transformers(importlib_metadata),
        without_transformers(importlib.metadata),
        without_mmdet(),
        warnings.catch_warnings(),
    ):
        message = 'Fail to import ``MultiScaleDeformable'  # mmcv-lite has no compiled ops
        warnings.filterwarnings('ignore', message=message)
        import mmpretrain.models
    check = mmpretrain.utils.dependency
    check.distribution = check.distribution.__wrapped__


@contextmanager
def without_transformers(metadata: ModuleType) -> Iterator[None]:
    """Hide `transformers` from `metadata.distribution`."""
    original = metadata.distribution

    @functools.wraps(original)
    def distribution(name: str) -> importlib.metadata.Distribution:
        if name == 'transformers':
            raise metadata.PackageNotFoundError(name)
        return original(name)

    metadata.distribution = distribution
    try:
        yield
    finally:
        metadata.distribution = original


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
