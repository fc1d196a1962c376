"""The allow-list for reading checkpoints and .pkl files, and their conversion to plain types for writing.

A pickle can call any function with any arguments. Even with `np.ndarray` and `np.dtype` alone, it could turn any address into
an object. So each name that checkpoints need is mapped to a small class or function of this module, which only builds
numeric arrays from bytes. `plain` then copies the result and rejects everything that is not known to be plain.

`portable` serves writing: it returns a copy that `torch.load(weights_only=True)` accepts in any process.
"""

import io
import logging
import os
import pickle
import pickletools
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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

ORIGIN = 'mmairl_origin'  # key of the record of where converted weights come from
HISTORIES = 'histories'  # key of the logged values
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
VALUES = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)
# Opcodes of pickles.
CONSTANTS = {'NEWTRUE': True, 'NEWFALSE': False, 'BYTEARRAY8': None}
CALLS = ('REDUCE', 'NEWOBJ', 'NEWOBJ_EX')
GETS = ('GET', 'BINGET', 'LONG_BINGET')
PUTS = ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE')
RECURSIVE = ('DUP', 'POP', 'POP_MARK')  # picklers only write them for recursive objects
SEPARATORS = (pickletools.markobject, pickletools.stackslice)
LARGEST = 1_000_000  # limit of values; a shared list counts as often as it is referenced
TEXT = 64  # characters or bytes that count as one value
LARGEST_KEY = 2**61 - 2  # Python hashes larger integers modulo 2**61 - 1, so they can collide
COLLISIONS = 8  # limit of different values with one hash, because many make a dictionary slow
LEGACY = 5  # number of pickles in a file of torch before 1.6
# Attributes of a dictionary of weights that are kept: torch's versions of modules, and the record of origin.
ATTRIBUTES = ('_metadata', ORIGIN)


class Refused(pickle.UnpicklingError):
    """A file has unsafe content. The message begins with 'it holds'."""


class StandIn:
    """Base class of the safe replacements for the names in a pickle.

    Instances have no attributes except `value` and, unless a subclass allows it, take no state and cannot be keys.
    """

    __slots__ = ('value',)
    __hash__ = None

    def __init__(self, *unused: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        raise Refused('it holds attributes for an object that takes none')


class ArrayType(StandIn):
    """Replaces `numpy.dtype`. Only numeric types are accepted."""

    __slots__ = ()

    def __init__(self, code: str, *unused: object) -> None:
        if not isinstance(code, str) or not NUMERIC.fullmatch(code):
            raise Refused('it holds an array of something other than numbers')
        self.value = np.dtype(code)

    def __setstate__(self, state: tuple) -> None:
        _, order, *parts = state
        if parts[:3] != [None, None, None] or order not in ('<', '>', '=', '|'):
            raise Refused('it holds an array of something other than numbers')
        self.value = self.value.newbyteorder(order)

    def read(self, content: bytes | str) -> np.ndarray:
        if isinstance(content, str):
            content = content.encode('latin1')
        return np.frombuffer(content, self.value).copy() if content else np.empty(0, self.value)


class Array(StandIn):
    """Replaces `numpy.ndarray` and the function that creates an empty one. `plain` extracts the array."""

    __slots__ = ()

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        self.value = kind.read(content).reshape(shape, order='F' if fortran else 'C')


class Scalar(StandIn):
    """Replaces the function that creates a NumPy number. `plain` extracts the number.

    Numbers can be keys. Their hash is the hash of their bytes, which Python randomizes, so that no file can provoke
    collisions.
    """

    __slots__ = ()

    def __init__(self, kind: ArrayType, content: bytes | str) -> None:
        (self.value,) = kind.read(content)

    def __hash__(self) -> int:
        return hash(self.value.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.value == other.value


def encoded(text: str = '', encoding: str = 'latin1') -> bytes:
    """Replace `_codecs.encode` and `bytes`, with which protocol 2 stores the bytes of an array."""
    if encoding != 'latin1':
        raise Refused('it holds text to be encoded')
    return text.encode('latin1')


class History(StandIn):
    """Replaces mmengine's HistoryBuffer. `plain` creates the real one."""

    __slots__ = ()

    def __setstate__(self, state: dict) -> None:
        self.value = (state['_log_history'], state['_count_history'], state['max_length'])


class Skipped(StandIn):
    """Replaces options of scripts, and foreign classes and functions. `plain` replaces them and their results with None."""

    __slots__ = ()
    __setstate__ = StandIn.__init__


def statistic(owner: type, name: str) -> None:
    """Replace the `getattr` with which a HistoryBuffer looks up its four statistics. They need not be restored."""
    if owner is not History or name not in ('min', 'max', 'current', 'mean'):
        raise Refused(f'it holds a request for {name!r} of an object')


class Storage(StandIn):
    """Replaces the function that reads the memory of a tensor. It uses `torch.load` with `weights_only=True`."""

    __slots__ = ()

    def __init__(self, content: bytes) -> None:
        file = io.BytesIO(content)
        for _ in range(LEGACY):
            refuse_endless(file)
        file.seek(0)
        self.value = torch.load(file, map_location='cpu', weights_only=True)  # noqa: TID251  weights only


def tensor(
    storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *unused: object
) -> Tensor:
    """Replace the function that creates a tensor from its memory. `as_strided` raises if it would exceed the memory."""
    memory = storage.value
    flat = torch.empty(0, dtype=memory.dtype).set_(memory.untyped())
    return flat.as_strided(shape, strides, offset)


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
    'argparse.Namespace': Skipped,
}
FOR_TORCH = [(stand_in, name) for name, stand_in in ALLOWED.items()]
# Only pickles that were not written by torch.save name these functions; torch.load has its own.
ALLOWED_IN_PICKLES: dict[str, Callable] = {
    **ALLOWED,
    'torch._utils._rebuild_tensor_v2': tensor,
    'torch.storage._load_from_bytes': Storage,
}


# The public pickle.Unpickler is written in C. It allocates a memo of any size that the file demands, and sets attributes of
# any object. The implementation in Python has no such memo, and attributes can be prevented by replacing BUILD.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler that only accepts the allowed names."""

    def find_class(self, module: str, name: str) -> Callable:
        if f'{module}.{name}' not in ALLOWED_IN_PICKLES:
            raise pickle.UnpicklingError(f'loading it would run {module}.{name}')
        return ALLOWED_IN_PICKLES[f'{module}.{name}']

    def load_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, StandIn):
            target.__setstate__(state)
        elif type(target) is not OrderedDict:
            raise Refused(f'it holds attributes for a {type(target).__name__}')

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


LEFT_OUT = object()  # in place of a value without a plain form
UNKNOWN = object()  # in place of a value that is no number, text or tuple of these


class SizedTuple(tuple):
    """A tuple with the number of its values, including those of nested tuples."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.size = 1 + sum(map(size_of, items))


def size_of(value: Any) -> int:
    """Return a size to which the time for hashing a value is proportional."""
    if type(value) is int:
        return 1 + value.bit_length() // 32
    return value.size if type(value) is SizedTuple else 1


class UnpicklingCost:
    """Estimates the time of unpickling steps that cannot be interrupted, because they run in C."""

    def __init__(self) -> None:
        self.hashed = 0
        self.by_hash: dict[int, Any] = {}
        self.colliding: dict[int, set] = defaultdict(set)

    def add(self, value: Any) -> None:
        """Count a value that is created or referenced, and may be used as a key.

        Raises:
            Refused: If a small file would take a long time.
        """
        size = size_of(value)
        if type(value) is not complex and size < 3:  # 64-bit integers rarely share a hash
            return
        self.hashed += size
        if size > LARGEST or self.hashed > 10 * LARGEST:
            raise Refused('it holds tuples that stand for more than a million values')
        number = hash(value)
        if self.by_hash.setdefault(number, value) != value:
            self.colliding[number].add(value)
            if len(self.colliding[number]) > COLLISIONS:
                raise Refused('it holds numbers that were chosen to collide as keys')


def refuse_endless(file: IO[bytes]) -> None:
    """Raise Refused if a small pickle would take minutes to read, because of nested tuples or keys with the same hash.

    The opcodes are simulated without unpickling anything. The simulation only tracks numbers, text and tuples.
    """
    cost = UnpicklingCost()
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    for code, argument, _ in pickletools.genops(file):
        name = code.name
        operands = [kind for kind in code.stack_before if kind not in SEPARATORS]
        top = len(stack) if operands == code.stack_before else marks.pop()
        start = top - len(operands)
        taken = stack[start:]
        if name in RECURSIVE:
            raise Refused('it holds an object that contains itself')
        if name == 'MARK':
            marks.append(len(stack))
            continue
        if name in PUTS:
            memo[len(memo) if argument is None else argument] = stack[-1]
            continue
        results = [UNKNOWN] * len(code.stack_after)
        if name in GETS:
            results = [memo[argument]]
        elif name == 'REDUCE' and _are_two_numbers(taken[1]):
            results = [complex(*taken[1])]  # no other allowed function takes two numbers
        elif name == 'REDUCE' and taken[0] == 'torch Size':
            (value,) = taken[1]
            if type(value) is not SizedTuple:
                raise Refused('it holds a size that is not made from a tuple')
            results = [value]
        elif 'TUPLE' in name or name in CALLS:
            results = [SizedTuple(taken)]  # the result of a call may contain its arguments
        elif results and not code.stack_before:
            results = [CONSTANTS.get(name, argument)]
        for value in results:
            cost.add(value)
        stack[start:] = results


def _are_two_numbers(value: Any) -> bool:
    is_pair = type(value) is SizedTuple and len(value) == 2
    return is_pair and all(type(item) in (int, float) for item in value)


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as the annotations of a data set, restricted to the allow-list."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        content = file.read()
        refuse_endless(io.BytesIO(content))
        loaded = PlainUnpickler(io.BytesIO(content), **kwargs).load()
        # A large data set has more than a million annotations. Each takes at least a byte of the file.
        return plain(loaded, max(LARGEST, len(content)))


def plain(value: Any, largest: int = LARGEST) -> Any:
    """Return a copy that consists of dictionaries, lists, numbers, text, tensors and numeric arrays.

    A shared list is copied for each reference to it.

    Raises:
        Refused: If there is anything else in the value, or if it has more than `largest` values.
    """
    return _Copier(largest).copy(value)


class _Copier:
    """Copies values and counts them."""

    def __init__(self, largest: int) -> None:
        self.remaining = largest
        self.open: set[int] = set()  # ids of the containers around the current value

    def copy(self, value: Any) -> Any:
        is_text = isinstance(value, (str, bytes, bytearray))
        self.remaining -= 1 + (len(value) // TEXT if is_text else 0)
        if self.remaining < 0:
            raise Refused('it holds lists that stand for more than a million values')
        kind = type(value)
        if kind in VALUES:
            return value
        if id(value) in self.open:
            raise Refused('it holds an object that contains itself')
        self.open.add(id(value))
        if kind in (dict, OrderedDict, Counter):
            copy = self._dictionary(value, kind)
        elif kind in (list, tuple, set, frozenset, torch.Size):
            copy = kind([self.copy(item) for item in value])
        else:
            copy = _leaf(value, kind)
        self.open.discard(id(value))
        return copy

    def _dictionary(self, value: dict, kind: type[dict]) -> dict:
        new = kind()
        for key, item in kind.items(value):  # `value.items` could be an attribute from the file
            new[self._key(key)] = self.copy(item)
        for name in ATTRIBUTES if kind is OrderedDict else ():
            if isinstance(vars(value).get(name), dict):
                setattr(new, name, self.copy(vars(value)[name]))
        return new

    def _key(self, key: Any) -> Any:
        if isinstance(key, Scalar) and key.value.dtype.kind in 'biuf':
            return key.value.item()
        if not isinstance(key, (str, bytes, int, float, tuple, NoneType)):
            raise Refused(f'it holds a dictionary with a {type(key).__name__} as a key')
        if isinstance(key, int) and abs(key) > LARGEST_KEY:
            raise Refused('it holds a dictionary with a number of more than 61 bits as a key')
        return self.copy(key)


def _leaf(value: Any, kind: type) -> Any:
    if Skipped in (kind, value):
        return None
    if kind in (Tensor, nn.Parameter):
        return _tensor(value)
    if kind in (Array, Scalar):
        return value.value
    if kind is History:
        values, counts, length = value.value
        return history(np.asarray(plain(values)), np.asarray(plain(counts)), length)
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
    """Convert a checkpoint to plain types, with the logged values as tensors under the key HISTORIES.

    mmengine stores the logged values as `HistoryBuffer` in the message hub, which `torch.load(weights_only=True)` rejects.
    """
    hub = checkpoint.get('message_hub')
    scalars = hub.get('log_scalars') if isinstance(hub, dict) else None
    if scalars:
        resumed = hub.get('resumed_keys', {})
        others = {name: value for name, value in resumed.items() if name not in scalars}
        hub = {**hub, 'log_scalars': {}, 'resumed_keys': others}
        buffers = {name: item for name, item in scalars.items() if isinstance(item, HistoryBuffer)}
        checkpoint = {**checkpoint, 'message_hub': hub, HISTORIES: buffers}
    return portable(checkpoint)


def write_checkpoint(content: dict, path: str | Path) -> None:
    """Write a checkpoint atomically, in plain types that `torch.load(weights_only=True)` accepts without this package."""
    # torch gets an open file, because with a path it hides the cause of an error.
    with replacing(path) as temporary, temporary.open('wb') as file:
        torch.save(portable_checkpoint(content), file)


def restore_histories(checkpoint: dict[str, Any]) -> None:
    """Put the logged values of a checkpoint back into its message hub."""
    histories = checkpoint.pop(HISTORIES, None)
    hub = checkpoint.get('message_hub')
    if isinstance(histories, dict) and isinstance(hub, dict):
        for name, saved in histories.items():
            values, counts = saved['values'].numpy(), saved['counts'].numpy()
            hub['log_scalars'][name] = history(values, counts, saved['max_length'])
            hub['resumed_keys'][name] = True


def portable(value: Any, place: str = '') -> Any:
    """Return a copy that `torch.load(weights_only=True)` accepts in a process without mmairl.

    NumPy numbers and arrays become Python numbers and tensors. Objects without a plain form are left out with a warning.
    """
    if type(value) in VALUES or type(value) is torch.Size:
        return value
    if isinstance(value, dict):
        return _portable_dictionary(value, place)
    for kind, plain_kind in PORTABLE:
        if isinstance(value, kind):
            copies = (portable(item, f'{place}.{index}') for index, item in enumerate(value))
            return plain_kind(None if copy is LEFT_OUT else copy for copy in copies)
    return _portable_leaf(value, place)


PORTABLE = ((tuple, tuple), ((list, deque), list), ((set, frozenset), set))


def _portable_dictionary(value: dict, place: str) -> dict:
    new = OrderedDict() if type(value) is OrderedDict else {}
    for key, item in value.items():
        inside = f'{place}.{key}' if place else str(key)
        new_key, new_item = portable(key, inside), portable(item, inside)
        if new_key is not LEFT_OUT and new_item is not LEFT_OUT:
            new[new_key] = new_item
    for name in ATTRIBUTES if type(value) is OrderedDict else ():
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
        with suppress(TypeError):  # torch lacks some of NumPy's types
            return torch.from_numpy(value.astype(value.dtype.newbyteorder('='), order='C'))
        return portable(value.tolist(), place)
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return portable(value.item(), place)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, str):  # a member of an Enum, for instance
        return str.__str__(value)
    for kind in (int, float, bytes):
        if isinstance(value, kind):
            return kind(value)
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
