"""The allow-list for reading checkpoints and .pkl files, and their conversion to plain types for writing.

A pickle asks for functions by name and calls them with what it likes. Even `np.ndarray` and `np.dtype` let it turn any
address into an object. So each name that a checkpoint needs leads to a small class or function of ours here, which
builds numeric arrays from bytes. `plain` then copies what came out and refuses whatever is not known to be plain.
`portable` is the other direction: it returns a copy that plain `torch.load(weights_only=True)` accepts anywhere.
"""

import io
import logging
import os
import pickle
import pickletools
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import NoneType
from typing import IO, Any

import numpy as np
import torch
from mmengine.fileio.handlers import PickleHandler
from mmengine.logging import HistoryBuffer, print_log
from torch import Tensor, nn

from mmairl.io import replacing

ORIGIN = 'mmairl_origin'  # where converted weights came from
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
VALUES = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)
CONSTANTS = {'NONE': None, 'NEWTRUE': True, 'NEWFALSE': False}
NAMES = (
    'GLOBAL',
    'PERSID',
    'EXT1',
    'EXT2',
    'EXT4',
)  # opcodes whose argument is not the value itself
CALLS = ('REDUCE', 'NEWOBJ', 'NEWOBJ_EX')
GETS, PUTS = ('GET', 'BINGET', 'LONG_BINGET'), ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE')
LARGEST = 1_000_000  # values, counted as a tree: a shared list counts each time it is referred to
TEXT = 64  # characters or bytes that count as one value
LARGEST_KEY = (
    2**61 - 2
)  # Python hashes larger integers modulo 2**61 - 1, so that they can be made to collide
COLLISIONS = 8  # different values with one hash; dictionaries take quadratic time with many
LEGACY = 5  # pickles in a file of torch before 1.6
HISTORIES = 'histories'  # the key of a checkpoint for the logged values
KEPT_ATTRIBUTES = (
    '_metadata',
    ORIGIN,
)  # of a dictionary of weights: torch's versions of modules, and our note


class Refused(pickle.UnpicklingError):
    """A file holds something that it must not; the text begins with 'it holds'."""


class StandIn:
    """Base class of the safe stand-ins for the names in a pickle.

    It takes a state only if its class says how, has no other attributes, and is no key of a dictionary.
    """

    __slots__ = ()
    __hash__ = None

    def __setstate__(self, state: object) -> None:
        raise Refused('it holds attributes for an object that takes none')


class ArrayType(StandIn):
    """Stands for `numpy.dtype`: numbers only."""

    __slots__ = ('dtype',)

    def __init__(self, code: str, align: bool = False, copy: bool = False) -> None:
        if not isinstance(code, str) or not NUMERIC.fullmatch(code):
            raise Refused('it holds an array of something other than numbers')
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        _, order, *parts = state
        if parts[:3] != [None, None, None] or order not in ('<', '>', '=', '|'):
            raise Refused('it holds an array of something other than numbers')
        self.dtype = self.dtype.newbyteorder(order)

    def read(self, content: bytes | str) -> np.ndarray:
        content = content.encode('latin1') if isinstance(content, str) else content
        return np.frombuffer(content, self.dtype).copy() if content else np.empty(0, self.dtype)


class Array(StandIn):
    """Stands for `numpy.ndarray` and for the function that makes an empty one; `plain` takes out the array."""

    __slots__ = ('value',)

    def __init__(self, *unused: object) -> None:
        pass

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        self.value = ArrayType.read(kind, content).reshape(shape, order='F' if fortran else 'C')


class Scalar(StandIn):
    """Stands for the function that makes a NumPy number; `plain` takes out the number."""

    __slots__ = ('value',)

    def __init__(self, kind: ArrayType, content: bytes | str) -> None:
        (self.value,) = ArrayType.read(kind, content)


def encoded(text: str = '', encoding: str = 'latin1') -> bytes:
    """Stands for `_codecs.encode` and `bytes`, by which protocol 2 writes the bytes of an array."""
    if encoding != 'latin1':
        raise Refused('it holds text to be encoded')
    return text.encode('latin1')


class History(StandIn):
    """Stands for mmengine's HistoryBuffer; `plain` makes the real one."""

    __slots__ = ('counts', 'length', 'values')

    def __init__(self, values: object = (), counts: object = (), length: int = 1_000_000) -> None:
        self.values, self.counts, self.length = values, counts, length

    def __setstate__(self, state: dict) -> None:
        self.values, self.counts = state['_log_history'], state['_count_history']
        self.length = state['max_length']


class Skipped(StandIn):
    """Stands for a script's options, a foreign class or function, and for whatever it would make; `plain` puts None there."""

    __slots__ = ()

    def __init__(self, *unused: object) -> None:
        pass

    __setstate__ = __init__


def statistic(owner: type, name: str) -> None:
    """Stands for the `getattr` by which a HistoryBuffer names its four statistics; a new buffer has them anyway."""
    if owner is not History or name not in ('min', 'max', 'current', 'mean'):
        raise Refused(f'it holds a request for {name!r} of an object')


class Storage(StandIn):
    """Stands for the function that reads a tensor's memory; torch reads it as weights only."""

    __slots__ = ('value',)

    def __init__(self, content: bytes) -> None:
        file = io.BytesIO(content)
        for _ in range(LEGACY):
            refuse_endless(file)
        file.seek(0)
        self.value = torch.load(file, map_location='cpu', weights_only=True)  # noqa: TID251  weights only


def tensor(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *unused: object
) -> Tensor:
    """Stands for the function that makes a tensor of its memory."""
    memory = Storage.value.__get__(storage)
    if min(offset, *shape, *strides, 0) < 0:
        raise Refused('it holds a tensor of a negative size')
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= len(memory):
        raise Refused('it holds a tensor that is larger than its content')
    return torch.empty(0, dtype=memory.dtype).set_(memory.untyped(), offset, shape, strides)


ALLOWED: dict[str, Callable] = {
    'collections.OrderedDict': OrderedDict,
    'numpy.ndarray': Array,
    'numpy.dtype': ArrayType,
    'numpy.core.multiarray._reconstruct': Array,
    'numpy._core.multiarray._reconstruct': Array,
    'numpy.core.multiarray.scalar': Scalar,
    'numpy._core.multiarray.scalar': Scalar,
    '_codecs.encode': encoded,
    'builtins.bytes': encoded,
    '__builtin__.bytes': encoded,
    'mmengine.logging.history_buffer.HistoryBuffer': History,
    'builtins.getattr': statistic,
    '__builtin__.getattr': statistic,
    'argparse.Namespace': Skipped,  # a script's options
}
FOR_TORCH = [(stand_in, name) for name, stand_in in ALLOWED.items()]
# torch.load makes tensors by itself; a pickle that was written without torch.save asks for these.
ALLOWED_IN_PICKLES: dict[str, Callable] = {
    **ALLOWED,
    'torch._utils._rebuild_tensor_v2': tensor,
    'torch.storage._load_from_bytes': Storage,
}


# pickle.Unpickler, the public class in C, keeps its memo in a list as long as an index in the file says, and sets
# attributes on whatever the file names; its twin in Python has neither fault once BUILD is replaced.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler of the names above and no other."""

    def find_class(self, module: str, name: str) -> Callable:
        if f'{module}.{name}' not in ALLOWED_IN_PICKLES:
            raise pickle.UnpicklingError(f'asks to run {module}.{name}')
        return ALLOWED_IN_PICKLES[f'{module}.{name}']

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StandIn):
            target.__setstate__(state)
        elif type(target) is not OrderedDict:
            raise Refused(f'it holds attributes for a {type(target).__name__}')

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


LEFT_OUT = object()  # stands for a value that has no plain form
OTHER = object()  # stands for a value that is neither a number nor text nor a tuple of these


class Cost:
    """Count what unpickling costs in C, where no signal is heard; raise Refused if a small file asks for a lot."""

    def __init__(self) -> None:
        self.hashed = 0
        self.by_hash: dict[int, Any] = {}
        self.colliding: dict[int, set] = {}

    def of_tuple(self, size: int) -> None:
        """Count a tuple that is made or referred to: as a key of a dictionary, all values in it are hashed."""
        self.hashed += size
        if size > LARGEST or self.hashed > 10 * LARGEST:
            raise Refused('it holds tuples that stand for more than a million values')

    def of_key(self, value: Any) -> None:
        """Count a value that may be a key."""
        place = hash(value)
        if self.by_hash.setdefault(place, value) == value:
            return
        others = self.colliding.setdefault(place, set())
        others.add(value)
        if len(others) > COLLISIONS:
            raise Refused('it holds numbers that were chosen to collide as keys')


def refuse_endless(file: IO[bytes]) -> None:
    """Refuse a pickle of a kilobyte that costs its reader minutes, by nested tuples or by keys with one hash.

    The file is not unpickled here; only numbers, text and tuples are followed.
    """
    cost = Cost()
    stack: list[
        tuple[int, Any]
    ] = []  # each value's size, and itself if it is a number, text or a tuple of these
    marks: list[int] = []
    memo: dict[int, tuple[int, Any]] = {}
    for code, value, _ in pickletools.genops(file):
        name = code.name
        if name == 'MARK':
            marks.append(len(stack))
            continue
        takes = [
            kind
            for kind in code.stack_before
            if kind not in (pickletools.markobject, pickletools.stackslice)
        ]
        start = (marks.pop() if takes != code.stack_before else len(stack)) - len(takes)
        taken = stack[start:] if code.stack_before else []
        if name in GETS:
            cost.of_tuple(memo[value][0])
            stack.append(memo[value])
        elif name == 'DUP':
            cost.of_tuple(stack[-1][0])
            stack.append(stack[-1])
        elif name in PUTS:
            memo[len(memo) if value is None else value] = stack[-1]
        elif 'TUPLE' in name:
            size = 1 + sum(size for size, _ in taken)
            cost.of_tuple(size)
            items = tuple(item for _, item in taken)
            known = not any(item is OTHER for item in items)
            if known:
                cost.of_key(items)
            stack[start:] = [(size, items if known else OTHER)]
        elif name in CONSTANTS:
            stack.append((1, CONSTANTS[name]))
        elif (
            type(value) in (int, float, str, bytes)
            and name not in NAMES
            and code.stack_after
            and not code.stack_before
        ):
            size = 1 + (value.bit_length() // 32 if type(value) is int else 0)
            if size > 2:
                cost.of_key(value)
            stack.append((size, value))
        elif name == 'REDUCE' and _are_two_numbers(arguments := taken[1][1]):
            cost.of_key(
                made := complex(*arguments)
            )  # no other function that is allowed takes two numbers
            stack[start:] = [(1, made)]
        else:
            # A call may return its tuple of arguments, as torch.Size does.
            size = sum(size for size, _ in taken) if name in CALLS else 1
            stack[start:] = [(size, OTHER)] * len(code.stack_after)


def _are_two_numbers(value: Any) -> bool:
    return (
        type(value) is tuple
        and len(value) == 2
        and all(type(item) in (int, float) for item in value)
    )


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as the annotations of a data set, by the same list."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        content = file.read()
        refuse_endless(io.BytesIO(content))
        # The annotations of a large data set are more than a million values, and each takes a byte at least.
        return plain(
            PlainUnpickler(io.BytesIO(content), **kwargs).load(), max(LARGEST, len(content))
        )


def plain(value: Any, largest: int = LARGEST) -> Any:
    """Return a copy made of dictionaries, lists, numbers, text, tensors and numeric arrays; refuse anything else.

    A copy of more than `largest` values is refused, too. Lists that share lists are counted as they would be written out.
    """
    return _Copier(largest).copy(value)[0]


class _Copier:
    """Copies values and counts them."""

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.done: dict[
            int, tuple[Any, int] | None
        ] = {}  # by id: the copy and its size; None while it is in work

    def copy(self, value: Any) -> tuple[Any, int]:
        """Return the copy and how many values it stands for."""
        if type(value) in VALUES:
            return value, 1 + (
                len(value) // TEXT if isinstance(value, (str, bytes, bytearray)) else 0
            )
        if id(value) not in self.done:
            self.done[id(value)] = None
            self.done[id(value)] = self._copied(value)
        if self.done[id(value)] is None:
            raise Refused('it holds an object that contains itself')
        return self.done[id(value)]

    def _copied(self, value: Any) -> tuple[Any, int]:
        kind = type(value)
        if kind in (dict, OrderedDict, Counter):
            return self._dictionary(value, kind)
        if kind in (list, tuple, set, frozenset, torch.Size):
            return self._items(value, kind)
        return self._leaf(value, kind), 1

    def _dictionary(self, value: dict, kind: type[dict]) -> tuple[dict, int]:
        new, size = kind(), 1
        for key, item in kind.items(value):  # an instance may hide it
            if not isinstance(key, (str, bytes, int, float, tuple, NoneType)):
                raise Refused(f'it holds a dictionary with a {type(key).__name__} for a key')
            if isinstance(key, int) and abs(key) > LARGEST_KEY:
                raise Refused('it holds a dictionary with a number of more than 61 bits for a key')
            (key, of_key), (item, of_item) = self.copy(key), self.copy(item)
            size = self._within(size + of_key + of_item)
            new[key] = item
        for name in KEPT_ATTRIBUTES if kind is OrderedDict else ():
            if isinstance(vars(value).get(name), dict):
                attribute, of_attribute = self.copy(vars(value)[name])
                size = self._within(size + of_attribute)
                setattr(new, name, attribute)
        return new, size

    def _items(self, value: Any, kind: type) -> tuple[Any, int]:
        items, size = [], 1
        for item in value:
            item, of_item = self.copy(item)
            size = self._within(size + of_item)
            items.append(item)
        return kind(items), size

    def _within(self, size: int) -> int:
        if size > self.largest:
            raise Refused('it holds lists that stand for more than a million values')
        return size

    def _leaf(self, value: Any, kind: type) -> Any:
        if Skipped in (kind, value):
            return None
        if kind in (Tensor, nn.Parameter):
            return _tensor(value)
        if kind in (Array, Scalar):
            return value.value
        if kind is History:
            values, counts = (
                np.asarray(plain(numbers)) for numbers in (value.values, value.counts)
            )
            return history(values, counts, value.length)
        if isinstance(value, np.generic) and value.dtype.kind in 'biufc':
            return value
        raise Refused(f'it holds a {kind.__name__}')


def history(values: np.ndarray, counts: np.ndarray, length: int) -> HistoryBuffer:
    """Return mmengine's buffer of logged values."""
    if values.dtype.kind not in 'biuf' or counts.dtype.kind not in 'biuf':
        raise Refused('it holds a history of something other than numbers')
    return HistoryBuffer(values, counts, int(length))


def _tensor(value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise Refused('it holds a tensor that is sparse, quantized or without content')
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise Refused('it holds a tensor that is larger than its content')
    return value.detach()


def portable_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint as it is written: plain types, and the logged values as tensors under a key of their own.

    mmengine keeps them as `HistoryBuffer` in the message hub, which makes `torch.load(weights_only=True)` fail.
    """
    hub = checkpoint.get('message_hub')
    if isinstance(hub, dict) and hub.get('log_scalars'):
        scalars = hub['log_scalars']
        resumed = {
            name: value
            for name, value in hub.get('resumed_keys', {}).items()
            if name not in scalars
        }
        histories = {
            name: buffer for name, buffer in scalars.items() if isinstance(buffer, HistoryBuffer)
        }
        hub = {**hub, 'log_scalars': {}, 'resumed_keys': resumed}
        checkpoint = {**checkpoint, 'message_hub': hub, HISTORIES: histories}
    return portable(checkpoint)


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write a checkpoint atomically, as plain types that `torch.load(weights_only=True)` accepts without this package."""
    with (
        replacing(path) as temporary,
        temporary.open('wb') as file,
    ):  # given a path, torch would hide the cause of a failure
        torch.save(portable_checkpoint(content), file)


def restore_histories(checkpoint: dict[str, Any]) -> None:
    """Put the logged values of a checkpoint back into its message hub."""
    histories, hub = checkpoint.pop(HISTORIES, None), checkpoint.get('message_hub')
    if isinstance(histories, dict) and isinstance(hub, dict):
        for name, saved in histories.items():
            numbers = (saved[part].numpy() for part in ('values', 'counts'))
            hub['log_scalars'][name] = history(*numbers, saved['max_length'])
            hub['resumed_keys'][name] = True


def portable(value: Any, place: str = '') -> Any:
    """Return a copy that `torch.load(weights_only=True)` accepts in a process that knows nothing of mmairl.

    NumPy's numbers and arrays become Python's numbers and tensors. Objects without a plain form are left out with a warning.
    """
    if type(value) in VALUES or type(value) is torch.Size:
        return value
    if isinstance(value, dict):
        return _portable_dictionary(value, place)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        kind = (
            tuple if isinstance(value, tuple) else list if isinstance(value, (list, deque)) else set
        )
        copies = (portable(item, f'{place}.{index}') for index, item in enumerate(value))
        return kind(None if copy is LEFT_OUT else copy for copy in copies)
    return _portable_leaf(value, place)


def _portable_dictionary(value: dict, place: str) -> dict:
    new = OrderedDict() if type(value) is OrderedDict else {}
    for key, item in value.items():
        inside = f'{place}.{key}' if place else str(key)
        pair = portable(key, inside), portable(item, inside)
        if not any(part is LEFT_OUT for part in pair):
            new[pair[0]] = pair[1]
    for name in KEPT_ATTRIBUTES if type(value) is OrderedDict else ():
        if name in vars(value):
            setattr(new, name, portable(vars(value)[name], place))
    return new


def _portable_leaf(value: Any, place: str) -> Any:
    if isinstance(value, Tensor) and type(value.detach()) is Tensor:
        return value.detach()
    if isinstance(value, HistoryBuffer):
        values, counts = value.data
        return dict(values=portable(values), counts=portable(counts), max_length=value.max_length)
    if isinstance(value, np.ndarray):
        if (
            value.dtype.kind not in 'biufc'
            or value.dtype.itemsize > 16
            or value.dtype == np.longdouble
        ):
            return portable(value.tolist(), place)
        return torch.from_numpy(value.astype(value.dtype.newbyteorder('='), order='C'))
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return portable(value.item(), place)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for kind in (int, float, str, bytes):  # members of an Enum, for instance
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    warn_left_out(place, type(value).__name__)
    return LEFT_OUT


@cache
def warn_left_out(place: str, kind: str) -> None:
    """Log once that a checkpoint lacks a value."""
    print_log(
        f"checkpoint: '{place}' is of type {kind}, which torch.load(weights_only=True) rejects, and is left out; "
        'have the hook that adds it save plain values',
        logger='current',
        level=logging.WARNING,
    )
