"""The models: student and teacher, heads, backbones and classifiers.

Importing this package registers mmpretrain's backbones.
"""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch


def import_mmpretrain() -> None:
    """Register mmpretrain's backbones without its multimodal models.

    The multimodal models import internals of `transformers` that move between its releases. If one of these imports fails,
    not even mmpretrain's ResNet can be imported. mmpretrain has no public switch that skips these models, so this function
    sets the private one during the import. mmpretrain itself sets it if `transformers` is not installed.
    """
    if 'mmpretrain.models' in sys.modules:
        return
    from mmpretrain.utils import dependency

    multimodal = patch.object(dependency, 'WITH_MULTIMODAL', False)
    with multimodal, without_mmdet(), warnings.catch_warnings():
        # mmpretrain warns with this message under mmcv-lite, which has no compiled ops.
        message = 'Fail to import ``MultiScaleDeformable'
        warnings.filterwarnings('ignore', message=message)
        import mmpretrain.models  # noqa: F401


@contextmanager
def without_mmdet() -> Iterator[None]:
    """Hide mmdet's models from mmpretrain while the `with` block runs, if mmcv has no compiled ops.

    mmpretrain tries to import mmdet's models for one of its classes. Without compiled ops, this import fails. In the onedl
    fork of OpenMMLab, the import takes several seconds to fail, and it prints a warning.
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
    """Return whether mmcv's ops, or replacements for them, can be imported."""
    try:
        import mmcv._ext  # noqa: F401
    except ImportError:
        # mmcv-lite has no ops, and ops that were compiled for another version of torch cannot be imported.
        return False
    return True


import_mmpretrain()
