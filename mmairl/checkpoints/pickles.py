"""Stand-ins for the classes in checkpoints, and plain checkpoints that every process can load.

Reading: `torch.load(weights_only=True)` accepts only the names on an allow-list. Allowing NumPy's own classes is unsafe,
because a pickle could then interpret any memory address as an object. Therefore each name that occurs in real checkpoints is
replaced by a stand-in, which can only build numeric arrays from bytes. `plain` puts the arrays in place of the stand-ins.

Writing: `portable` returns a copy of a checkpoint that `torch.load(weights_only=True)` accepts, even without mmairl.
"""

import logging
import pickle
import re
from collections import OrderedDict
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer, print_log
from torch import Tensor

from mmairl.io import replacing

# Under this key, converted files store the record of origin, which states where their weights come from.
ORIGIN = 'mmairl_origin'
# mmengine's buffers of logged values are stored as dictionaries with these keys. mmengine itself skips such dictionaries.
HISTORY = {'values', 'counts', 'max_length'}
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
warn_once = cache(print_log)  # each value that is left out is reported only once
VALUES = (bool, int, float, complex, str, bytes, NoneType, torch.dtype, torch.device, torch.Size)


class StandIn:
    """Base class of the stand-ins. An instance has no attribute except `value`."""

    def __init__(self, *unused: object) -> None:
        self.value = None

    def __setstate__(self, state: object) -> None:
        pass


class ArrayType(StandIn):
    """The stand-in for `numpy.dtype`. It accepts only numeric types."""

    def __init__(self, code: str, *unused: object) -> None:
        if not isinstance(code, str) or not NUMERIC.fullmatch(code):
            raise pickle.UnpicklingError('it holds an array of something other than numbers')
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        self.value = self.value.newbyteorder(state[1])

    def read(self, content: bytes) -> np.ndarray:
        return np.frombuffer(content, self.value).copy()


class Array(StandIn):
    """The stand-in for `numpy.ndarray` and for the function that creates an empty array."""

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        self.value = kind.read(content).reshape(shape, order='F' if fortran else 'C')


class Scalar(StandIn):
    """The stand-in for the function that creates a NumPy number. The value is a Python number."""

    def __init__(self, kind: ArrayType, content: bytes) -> None:
        self.value = kind.read(content)[0].item()


class Skipped(StandIn):
    """The stand-in for objects that are not needed, such as options of scripts and logged values. The value is None."""


def statistic(owner: object, name: str) -> None:
    """Serve as a stand-in for the `getattr` by which a HistoryBuffer looks up its statistics, which need not be restored."""


STAND_INS = [
    (Array, 'numpy.ndarray'),
    (ArrayType, 'numpy.dtype'),
    (Array, 'numpy.core.multiarray._reconstruct'),
    (Array, 'numpy._core.multiarray._reconstruct'),
    (Scalar, 'numpy.core.multiarray.scalar'),
    (Scalar, 'numpy._core.multiarray.scalar'),
    (Skipped, 'mmengine.logging.history_buffer.HistoryBuffer'),
    (statistic, 'builtins.getattr'),
    (statistic, '__builtin__.getattr'),
    (Skipped, 'argparse.Namespace'),
]


def plain(value: Any) -> Any:
    """Return a loaded value after replacing the stand-ins in it by their values."""
    if value is Skipped:
        return None
    if isinstance(value, StandIn):
        # A pickle can create an object without calling its constructor.
        return getattr(value, 'value', None)
    if isinstance(value, dict) and value.keys() == HISTORY:
        return HistoryBuffer(value['values'].numpy(), value['counts'].numpy(), value['max_length'])
    if isinstance(value, dict):
        # Methods of `value` are not called by name, because a file can replace them by attributes.
        for key in list(dict.keys(value)):
            dict.__setitem__(value, key, plain(dict.__getitem__(value, key)))
        return value
    if type(value) in (list, tuple, set):
        return type(value)(plain(item) for item in value)
    return value


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write a checkpoint atomically, in plain types that `torch.load(weights_only=True)` accepts without this package."""
    # torch is given an open file, because it hides the cause of an error if it is given a path.
    with replacing(path) as temporary, temporary.open('wb') as file:
        torch.save(portable(content), file)


def portable(value: Any, place: str = '') -> Any:
    """Return a copy of a value that `torch.load(weights_only=True)` accepts, even in a process without mmairl.

    NumPy numbers become Python numbers, and arrays become tensors. Objects that cannot be converted become None, with a
    warning.

    Args:
        value: The value to copy.
        place: Dotted name of the value in the checkpoint, for the warning.
    """
    if type(value) in VALUES:
        return value
    if isinstance(value, dict):
        copy = OrderedDict() if type(value) is OrderedDict else {}
        for key, item in value.items():
            copy[portable(key)] = portable(item, f'{place}.{key}' if place else str(key))
        if type(value) is OrderedDict:
            attributes = {name: portable(item) for name, item in vars(value).items()}
            vars(copy).update(attributes)
        return copy
    if isinstance(value, list | tuple | set):
        items = (portable(item, place) for item in value)
        return type(value)(items) if type(value) in (tuple, set) else list(items)
    if isinstance(value, Tensor) and type(value.detach()) is Tensor:
        return value.detach()
    if isinstance(value, HistoryBuffer):
        values, counts = value.data
        return dict(values=portable(values), counts=portable(counts), max_length=value.max_length)
    if isinstance(value, np.ndarray):
        # If torch lacks the type of the array, the array becomes a list.
        with suppress(TypeError):
            return torch.from_numpy(value.astype(value.dtype.newbyteorder('='), order='C'))
        return portable(value.tolist(), place)
    if isinstance(value, np.generic):
        return value.item()
    # The value is an instance of a subclass of one of these types, such as a member of an Enum.
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(getattr(value, 'value', value))
    warn_once(
        f"checkpoint: '{place}' becomes None, because torch.load(weights_only=True) rejects its type {type(value).__name__}; "
        'change the hook that adds this entry, so that it saves plain values',
        logger='current',
        level=logging.WARNING,
    )
    return None
