"""Read pickles from untrusted files safely, and write checkpoints that every process can load.

Reading: a pickle can call any function with any arguments. Even if only `np.ndarray` and `np.dtype` were allowed, it could
interpret any memory address as an object. Therefore only the names on an allow-list, which occur in checkpoints, are accepted.
Except for OrderedDict, each of these names is replaced by a stand-in: a small class or function of this module that can only
build numeric arrays from bytes. `plain` then copies the loaded value and rejects every type that is not known to be harmless.

Writing: `portable` returns a copy of a checkpoint that `torch.load(weights_only=True)` accepts, even without mmairl.
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

# Under this key, converted files store the record of origin, which states where their weights come from.
ORIGIN = 'mmairl_origin'
# Under this key, checkpoints store the logged values.
HISTORIES = 'histories'
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
VALUES = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)
# These are names of opcodes, the instructions that a pickle consists of.
CONSTANTS = {'NEWTRUE': True, 'NEWFALSE': False, 'BYTEARRAY8': None}
CALLS = ('REDUCE', 'NEWOBJ', 'NEWOBJ_EX')
GETS = ('GET', 'BINGET', 'LONG_BINGET')
PUTS = ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE')
# Picklers write these opcodes only for objects that contain themselves.
RECURSIVE = ('DUP', 'POP', 'POP_MARK')
SEPARATORS = (pickletools.markobject, pickletools.stackslice)
# A file may contain at most this many values. A list that is referenced n times counts n times.
LARGEST = 1_000_000
# This many characters or bytes count as one value.
TEXT = 64
# Python hashes larger integers modulo 2**61 - 1, so a file could contain many of them with the same hash.
LARGEST_KEY = 2**61 - 2
# At most this many different values may have the same hash, because many more would make a dictionary slow.
COLLISIONS = 8
# A file of torch before 1.6 consists of this many pickles.
LEGACY = 5
# These attributes of a dictionary of weights are copied, too: torch's version numbers of modules, and the record of origin.
ATTRIBUTES = ('_metadata', ORIGIN)


class Refused(pickle.UnpicklingError):
    """The error for a file with unsafe content. Its message always begins with 'it holds'."""


class StandIn:
    """Base class of the stand-ins, which replace the classes that a pickle names.

    An instance has no attribute except `value`. Unless a subclass allows it, a pickle cannot set the state of an instance or
    use it as a key of a dictionary.
    """

    __slots__ = ('value',)
    __hash__ = None

    def __init__(self, *unused: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        raise Refused('it holds attributes of an object that must have none')


class ArrayType(StandIn):
    """The stand-in for `numpy.dtype`. It accepts only numeric types."""

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
    """The stand-in for `numpy.ndarray` and for the function that creates an empty array. `plain` extracts the array."""

    __slots__ = ()

    def __setstate__(self, state: tuple) -> None:
        _, shape, kind, fortran, content = state
        self.value = kind.read(content).reshape(shape, order='F' if fortran else 'C')


class Scalar(StandIn):
    """The stand-in for the function that creates a NumPy number. `plain` extracts the number.

    Numbers can be keys of dictionaries. The hash of a number is the hash of its bytes. Python randomizes such hashes, so a
    file cannot contain numbers that were chosen to have the same hash.
    """

    __slots__ = ()

    def __init__(self, kind: ArrayType, content: bytes | str) -> None:
        (self.value,) = kind.read(content)

    def __hash__(self) -> int:
        return hash(self.value.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scalar) and self.value == other.value


def encoded(text: str = '', encoding: str = 'latin1') -> bytes:
    """Serve as a stand-in for `_codecs.encode` and `bytes`, by which pickle protocol 2 stores the bytes of an array."""
    if encoding != 'latin1':
        raise Refused('it holds text in an encoding other than latin1')
    return text.encode('latin1')


class History(StandIn):
    """The stand-in for mmengine's HistoryBuffer. `plain` creates the real buffer."""

    __slots__ = ()

    def __setstate__(self, state: dict) -> None:
        self.value = (state['_log_history'], state['_count_history'], state['max_length'])


class Skipped(StandIn):
    """The stand-in for objects that are not needed: the options of scripts, and classes and functions of other projects.

    `plain` returns None in place of these objects.
    """

    __slots__ = ()
    __setstate__ = StandIn.__init__


def statistic(owner: type, name: str) -> None:
    """Serve as a stand-in for the `getattr` by which a HistoryBuffer looks up its four statistics.

    It returns nothing, because the statistics need not be restored.
    """
    if owner is not History or name not in ('min', 'max', 'current', 'mean'):
        raise Refused(f'it holds a lookup of the attribute {name!r} of an object')


class Storage(StandIn):
    """The stand-in for the function that reads the memory of a tensor.

    The stand-in calls `torch.load` with `weights_only=True`.
    """

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
    """Serve as a stand-in for the function that creates a tensor from its memory.

    A file cannot make the tensor read beyond this memory, because `as_strided` then raises an error.
    """
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
# These two functions are added for pickles that are read without torch.load. torch.load has its own versions of them.
ALLOWED_IN_PICKLES: dict[str, Callable] = {
    **ALLOWED,
    'torch._utils._rebuild_tensor_v2': tensor,
    'torch.storage._load_from_bytes': Storage,
}


# The public pickle.Unpickler is written in C. It allocates as much memory as the file demands, and it sets attributes of any
# object. The Python implementation does not allocate memory in advance, and `load_build` below does not set attributes.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler that accepts only the names on the allow-list."""

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


# `portable` returns this object for a value that has no plain form.
LEFT_OUT = object()
# `refuse_endless` uses this object for every value except numbers, text, and tuples of them.
UNKNOWN = object()


class SizedTuple(tuple):
    """A tuple that stores its size: the number of its values, including the values of nested tuples."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.size = 1 + sum(map(size_of, items))


def size_of(value: Any) -> int:
    """Return the size of a value. The time that Python takes to hash the value is proportional to the size."""
    if type(value) is int:
        return 1 + value.bit_length() // 32
    return value.size if type(value) is SizedTuple else 1


class UnpicklingCost:
    """Estimates how long it takes to hash the values of a pickle. Hashing runs in C, so it cannot be interrupted."""

    def __init__(self) -> None:
        self.hashed = 0
        self.by_hash: dict[int, Any] = {}
        self.colliding: dict[int, set] = defaultdict(set)

    def add(self, value: Any) -> None:
        """Add the time to hash a value, because the pickle may use the value as a key of a dictionary.

        Raises:
            Refused: If hashing would take a long time.
        """
        size = size_of(value)
        # Small values are skipped, because hashing them takes little time, and integers of 64 bits rarely have the same hash.
        if type(value) is not complex and size < 3:
            return
        self.hashed += size
        if size > LARGEST or self.hashed > 10 * LARGEST:
            raise Refused('it holds nested tuples of more than a million values')
        number = hash(value)
        if self.by_hash.setdefault(number, value) != value:
            self.colliding[number].add(value)
            if len(self.colliding[number]) > COLLISIONS:
                raise Refused('it holds numbers that were chosen to collide as keys')


def refuse_endless(file: IO[bytes]) -> None:
    """Raise `Refused` if a small pickle would take minutes to read. Nested tuples, or keys with the same hash, can cause this.

    The pickle's instructions are simulated without creating objects. The simulation only tracks numbers, text and tuples.
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
            # The called function is `complex`, because no other allowed function takes two numbers.
            results = [complex(*taken[1])]
        elif name == 'REDUCE' and taken[0] == 'torch Size':
            (value,) = taken[1]
            if type(value) is not SizedTuple:
                raise Refused('it holds a size that is not made from a tuple')
            results = [value]
        elif 'TUPLE' in name or name in CALLS:
            # The result of a call may contain the arguments, so the result is treated like a tuple of the arguments.
            results = [SizedTuple(taken)]
        elif results and not code.stack_before:
            results = [CONSTANTS.get(name, argument)]
        for value in results:
            cost.add(value)
        stack[start:] = results


def _are_two_numbers(value: Any) -> bool:
    is_pair = type(value) is SizedTuple and len(value) == 2
    return is_pair and all(type(item) in (int, float) for item in value)


class PlainPickles(PickleHandler):
    """Reads .pkl files, such as the annotations of a data set, for mmengine. Only names on the allow-list are accepted."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        content = file.read()
        refuse_endless(io.BytesIO(content))
        loaded = PlainUnpickler(io.BytesIO(content), **kwargs).load()
        # A large data set has more than a million values, and each value takes at least a byte of the file. Therefore the
        # limit is raised to the number of bytes.
        return plain(loaded, max(LARGEST, len(content)))


def plain(value: Any, largest: int = LARGEST) -> Any:
    """Return a copy of a loaded value that consists of dictionaries, lists, numbers, text, tensors and numeric arrays.

    A list that is referenced several times is copied several times.

    Raises:
        Refused: If the value contains any other type, or more than `largest` values.
    """
    return _Copier(largest).copy(value)


class _Copier:
    """Copies a value and everything in it, and counts the values."""

    def __init__(self, largest: int) -> None:
        self.remaining = largest
        # The ids of the containers that contain the current value.
        self.open: set[int] = set()

    def copy(self, value: Any) -> Any:
        is_text = isinstance(value, (str, bytes, bytearray))
        self.remaining -= 1 + (len(value) // TEXT if is_text else 0)
        if self.remaining < 0:
            raise Refused('it holds nested lists of more than a million values')
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
        # `value.items` is not called, because the file could have replaced it by an attribute.
        for key, item in kind.items(value):
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
    """Create mmengine's buffer of logged values from two numeric arrays."""
    if values.dtype.kind not in 'biuf' or counts.dtype.kind not in 'biuf':
        raise Refused('it holds logged values that are not numbers')
    return HistoryBuffer(values, counts, int(length))


def _tensor(value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise Refused('it holds a tensor that is sparse, quantized or without content')
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise Refused('it holds a tensor that is larger than its content')
    return value.detach()


def portable_checkpoint(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint to plain types, and move the logged values to the key HISTORIES, as tensors.

    mmengine stores the logged values in the message hub as `HistoryBuffer`, a class that `torch.load(weights_only=True)`
    rejects.
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
    # torch is given an open file, because it hides the cause of an error if it is given a path.
    with replacing(path) as temporary, temporary.open('wb') as file:
        torch.save(portable_checkpoint(content), file)


def restore_histories(checkpoint: dict[str, Any]) -> None:
    """Move the logged values of a checkpoint from the key HISTORIES back to its message hub."""
    histories = checkpoint.pop(HISTORIES, None)
    hub = checkpoint.get('message_hub')
    if isinstance(histories, dict) and isinstance(hub, dict):
        for name, saved in histories.items():
            values, counts = saved['values'].numpy(), saved['counts'].numpy()
            hub['log_scalars'][name] = history(values, counts, saved['max_length'])
            hub['resumed_keys'][name] = True


def portable(value: Any, place: str = '') -> Any:
    """Return a copy of a value that `torch.load(weights_only=True)` accepts, even in a process without mmairl.

    NumPy numbers become Python numbers, and arrays become tensors. Objects that cannot be converted are left out of
    dictionaries, and replaced by None in lists, tuples and sets, with a warning.

    Args:
        value: The value to copy.
        place: Dotted name of the value in the checkpoint, for the warning.
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
        # If torch lacks the type of the array, the array becomes a list.
        with suppress(TypeError):
            return torch.from_numpy(value.astype(value.dtype.newbyteorder('='), order='C'))
        return portable(value.tolist(), place)
    if isinstance(value, np.generic) and not isinstance(value.item(), np.generic):
        return portable(value.item(), place)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    # The value is an instance of a subclass of str, such as a member of an Enum.
    if isinstance(value, str):
        return str.__str__(value)
    for kind in (int, float, bytes):
        if isinstance(value, kind):
            return kind(value)
    warn_left_out(place, type(value).__name__)
    return LEFT_OUT


@cache
def warn_left_out(place: str, kind: str) -> None:
    """Log a warning that a value is left out of the checkpoint. Each value is reported only once."""
    print_log(
        f"checkpoint: '{place}' is left out, because torch.load(weights_only=True) rejects its type {kind}; change the hook "
        'that adds this entry, so that it saves plain values',
        logger='current',
        level=logging.WARNING,
    )
