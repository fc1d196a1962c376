"""The allow-list for reading checkpoints and .pkl files, and their conversion to plain types for writing.

A pickle names functions and calls them with arguments of its choice. Even `np.ndarray` and `np.dtype` let it turn any
address into an object. So each name that a checkpoint needs is mapped to a small class or function of this module, which
builds numeric arrays from bytes. `plain` then copies the result and rejects everything that is not known to be plain.
`portable` is the opposite direction: it returns a copy that plain `torch.load(weights_only=True)` accepts anywhere.
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

ORIGIN = 'mmairl_origin'  # key of the record where converted weights came from
HISTORIES = 'histories'  # key of a checkpoint for the logged values
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
VALUES = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)
# Opcodes of pickles.
CONSTANTS = {'NEWTRUE': True, 'NEWFALSE': False, 'BYTEARRAY8': None}
CALLS = ('REDUCE', 'NEWOBJ', 'NEWOBJ_EX')
GETS = ('GET', 'BINGET', 'LONG_BINGET')
PUTS = ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE')
RECURSIVE = ('DUP', 'POP', 'POP_MARK')  # picklers write them for recursive objects only
SEPARATORS = (pickletools.markobject, pickletools.stackslice)
LARGEST = 1_000_000  # values, counted as a tree: a shared list counts each time it is referred to
TEXT = 64  # characters or bytes that count as one value
LARGEST_KEY = 2**61 - 2  # Python hashes larger integers modulo 2**61 - 1, so they can collide
COLLISIONS = 8  # different values with one hash; with many, a dictionary takes quadratic time
LEGACY = 5  # pickles in a file of torch before 1.6
# Attributes of a dictionary of weights that are read and written: torch's versions of modules, and our record.
ATTRIBUTES = ('_metadata', ORIGIN)


class Refused(pickle.UnpicklingError):
    """A file holds something that it must not. The message begins with 'it holds'."""


class StandIn:
    """Base class of the safe replacements for the names in a pickle.

    An instance accepts a state only if its class defines how, has no other attributes, and cannot be a key.
    """

    __slots__ = ('value',)
    __hash__ = None

    def __init__(self, *unused: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        raise Refused('it holds attributes for an object that takes none')


class ArrayType(StandIn):
    """Replaces `numpy.dtype`. Only types of numbers are accepted."""

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

    Numbers may be keys. Their hash is that of their bytes, which Python randomizes, so no file can make them collide.
    """

    __slots__ = ()

    def __init__(self, kind: ArrayType, content: bytes | str) -> None:
        (self.value,) = kind.read(content)

    def __hash__(self) -> int:
        return hash(self.value.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.value == other.value


def encoded(text: str = '', encoding: str = 'latin1') -> bytes:
    """Replace `_codecs.encode` and `bytes`, by which protocol 2 stores the bytes of an array."""
    if encoding != 'latin1':
        raise Refused('it holds text to be encoded')
    return text.encode('latin1')


class History(StandIn):
    """Replaces mmengine's HistoryBuffer. `plain` creates the real one."""

    __slots__ = ()

    def __setstate__(self, state: dict) -> None:
        self.value = (state['_log_history'], state['_count_history'], state['max_length'])


class Skipped(StandIn):
    """Replaces a script's options and foreign classes and functions. `plain` turns them and their results into None."""

    __slots__ = ()
    __setstate__ = StandIn.__init__


def statistic(owner: type, name: str) -> None:
    """Replace the `getattr` by which a HistoryBuffer names its four statistics. A new buffer has them anyway."""
    if owner is not History or name not in ('min', 'max', 'current', 'mean'):
        raise Refused(f'it holds a request for {name!r} of an object')


class Storage(StandIn):
    """Replaces the function that reads a tensor's memory. torch reads it as weights only."""

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
    """Replace the function that creates a tensor from its memory. `as_strided` raises outside of the memory."""
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
# torch.load creates tensors itself; a pickle that was written without torch.save names these functions.
ALLOWED_IN_PICKLES: dict[str, Callable] = {
    **ALLOWED,
    'torch._utils._rebuild_tensor_v2': tensor,
    'torch.storage._load_from_bytes': Storage,
}


# The public pickle.Unpickler, in C, allocates a memo as long as an index in the file asks for and sets attributes on
# whatever the file names. Its Python twin has neither fault once BUILD is replaced.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler of the allowed names and no others."""

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


LEFT_OUT = object()  # marks a value that has no plain form
UNKNOWN = object()  # marks a value other than a number, text or a tuple of these


class SizedTuple(tuple):
    """A tuple that counts its values, including those of nested tuples."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.size = 1 + sum(map(size_of, items))


def size_of(value: Any) -> int:
    """Return a measure of the time to hash a value."""
    if type(value) is int:
        return 1 + value.bit_length() // 32
    return value.size if type(value) is SizedTuple else 1


class UnpicklingCost:
    """Counts the work of unpickling that C code does without a chance to interrupt it.

    Raises:
        Refused: If a small file causes a lot of work.
    """

    def __init__(self) -> None:
        self.hashed = 0
        self.by_hash: dict[int, Any] = {}
        self.colliding: dict[int, set] = defaultdict(set)

    def add(self, value: Any) -> None:
        """Count a value that is created or referred to, and may be a key."""
        size = size_of(value)
        if type(value) is not complex and size < 3:  # few integers of 64 bits share a hash
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
    """Raise Refused if a small pickle would take its reader minutes, by nested tuples or by keys with one hash.

    The file is not unpickled. Only numbers, text and tuples are followed.
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
            results = [SizedTuple(taken)]  # a call may return its arguments
        elif results and not code.stack_before:
            results = [CONSTANTS.get(name, argument)]
        for value in results:
            cost.add(value)
        stack[start:] = results


def _are_two_numbers(value: Any) -> bool:
    is_pair = type(value) is SizedTuple and len(value) == 2
    return is_pair and all(type(item) in (int, float) for item in value)


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as annotations of a data set, restricted to the allow-list."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        content = file.read()
        refuse_endless(io.BytesIO(content))
        loaded = PlainUnpickler(io.BytesIO(content), **kwargs).load()
        # Annotations of a large data set are more than a million values, and each takes at least a byte.
        return plain(loaded, max(LARGEST, len(content)))


def plain(value: Any, largest: int = LARGEST) -> Any:
    """Return a copy made of dictionaries, lists, numbers, text, tensors and numeric arrays.

    Shared lists are copied each time they are referred to.

    Raises:
        Refused: If the value holds anything else, or more than `largest` values.
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
        for key, item in kind.items(value):  # an instance may hide its method
            new[self._key(key)] = self.copy(item)
        for name in ATTRIBUTES if kind is OrderedDict else ():
            if isinstance(vars(value).get(name), dict):
                setattr(new, name, self.copy(vars(value)[name]))
        return new

    def _key(self, key: Any) -> Any:
        if isinstance(key, Scalar) and key.value.dtype.kind in 'biuf':
            return key.value.item()
        if not isinstance(key, (str, bytes, int, float, tuple, NoneType)):
            raise Refused(f'it holds a dictionary with a {type(key).__name__} for a key')
        if isinstance(key, int) and abs(key) > LARGEST_KEY:
            raise Refused('it holds a dictionary with a number of more than 61 bits for a key')
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
    """Return a checkpoint as it is written: plain types, and the logged values as tensors under a key of their own.

    mmengine keeps them as `HistoryBuffer` in the message hub, which makes `torch.load(weights_only=True)` fail.
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
    """Write a checkpoint atomically, as plain types that `torch.load(weights_only=True)` accepts without this package."""
    # An open file instead of a path: torch would hide the cause of a failure.
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
    """Return a copy that `torch.load(weights_only=True)` accepts in a process that knows nothing of mmairl.

    NumPy's numbers and arrays become Python's numbers and tensors. Objects without a plain form are left out with a warning.
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
