"""Compare nested values and training checkpoints bit for bit."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch import Tensor

from mmairl.checkpoints.load import load_checkpoint

COMPARED = ('state_dict', 'optimizer', 'random_states', 'place')


def differing(expected: Any, actual: Any, name: str) -> list[str]:
    """List the dotted names of the parts in which two nested values differ in type, shape or bits."""
    if type(expected) is not type(actual):
        return [name]
    expected, actual = _by_key(expected), _by_key(actual)
    if not isinstance(expected, dict):
        return [] if _bits(expected) == _bits(actual) else [name]
    if expected.keys() != actual.keys():
        return [name]
    return [
        place
        for key in expected
        for place in differing(expected[key], actual[key], f'{name}.{key}')
    ]


def different_runs(one: Path, other: Path) -> list[str]:
    """List where two training checkpoints differ: in weights, in state that affects later steps, or in logged losses."""
    one, other = map(load_checkpoint, (one, other))
    names = [f'meta.{key}' for key in ('iter', 'epoch') if one['meta'][key] != other['meta'][key]]
    for part in COMPARED:
        names += differing(one.get(part), other.get(part), part)
    losses = [file['message_hub']['log_scalars']['train/loss'].data[0] for file in (one, other)]
    return names + differing(*losses, 'train/loss')


def _by_key(value: Any) -> Any:
    if isinstance(value, HistoryBuffer):
        return vars(value)
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else value


def _bits(value: Any) -> tuple:
    if isinstance(value, Tensor):
        return (
            value.dtype,
            value.shape,
            value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return (repr(value),)
