"""Whether two checkpoints are of the same run: every value of them, to the last bit."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmairl.engine.checkpoint import load_checkpoint

# Names and times aside, which no two runs share: weights of both networks, statistics, queue, optimizer, schedules, probe,
# generators and the place in the order of images.
COMPARED = ('state_dict', 'optimizer', 'param_schedulers', 'online_probe', 'random_states', 'place')


def different_runs(one: Path, other: Path) -> list[str]:
    """Where two training checkpoints differ in what was learnt, in what comes next, or in a loss that was logged.

    >>> different_runs(Path('whole/iter_15.pth'), Path('resumed/iter_15.pth'))  # doctest: +SKIP
    []
    """
    one, other = load_checkpoint(one), load_checkpoint(other)
    found = [f'meta.{key}' for key in ('iter', 'epoch') if one['meta'][key] != other['meta'][key]]
    for part in COMPARED:
        found += differing(one.get(part), other.get(part), part)
    losses = [saved['message_hub']['log_scalars']['train/loss'].data[0] for saved in (one, other)]
    return found + differing(*losses, 'train/loss')


def differing(one: object, other: object, name: str) -> list[str]:
    """Where two nested values differ in a bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return [name]
        return [found for key in one for found in differing(one[key], other[key], f'{name}.{key}')]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return [name]
        pairs = enumerate(zip(one, other))
        return [found for place, pair in pairs for found in differing(*pair, f'{name}.{place}')]
    return [] if identical(one, other) else [name]


def identical(one: object, other: object) -> bool:
    """Equal as bytes: a zero differs from a negative zero, and a NaN is equal to itself."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(as_bytes(one), as_bytes(other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
