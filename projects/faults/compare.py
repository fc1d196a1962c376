"""Whether two checkpoints are of the same run: every value of them, to the last bit. And whether a file is damaged."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor

from mmairl.engine.checkpoint import load_checkpoint

# All that a run leaves behind but names and times, which no two runs share.
COMPARED = ('state_dict', 'optimizer', 'param_schedulers', 'online_probe', 'random_states', 'place')


def different_runs(one: Path, other: Path) -> list[str]:
    """List the differences of two training checkpoints in the weights, in the steps to come, or in a loss that was logged.

    >>> different_runs(Path('whole/iter_15.pth'), Path('resumed/iter_15.pth'))  # doctest: +SKIP
    []
    """
    one, other = load_checkpoint(one), load_checkpoint(other)
    found = [f'meta.{key}' for key in ('iter', 'epoch') if one['meta'][key] != other['meta'][key]]
    for part in COMPARED:
        found += differing(one.get(part), other.get(part), part)
    losses = [saved['message_hub']['log_scalars']['train/loss'].data[0] for saved in (one, other)]
    return found + differing(*losses, 'train/loss')


def differing(one: Any, other: Any, name: str) -> list[str]:
    """List where two nested values differ in a type, a shape or a bit: 0.0 and -0.0 differ, NaN equals itself."""
    if type(one) is not type(other):
        return [name]
    if isinstance(one, HistoryBuffer):
        return differing(vars(one), vars(other), name)
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [name]
        return [found for key in one for found in differing(one[key], other[key], f'{name}.{key}')]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [name]
        pairs = enumerate(zip(one, other))
        return [found for place, pair in pairs for found in differing(*pair, f'{name}.{place}')]
    return [] if _identical(one, other) else [name]


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(_bytes(one), _bytes(other))
        )
    if isinstance(one, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    return repr(one) == repr(other)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def is_damaged(path: Path) -> bool:
    """Whether the archive, or a checksum in it, is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, OSError):
        return True
