"""The one allow-list for pickles in .pth and .pkl files: they give tensors, numeric arrays and plain values, nothing else.

A pickle asks for functions by name and calls them with what it likes. Even `np.ndarray` and `np.dtype` let it turn any
address into an object. So each name that a checkpoint needs leads to a small class or function of ours here, which
builds numeric arrays from bytes. `plain` then copies what came out and refuses whatever is not known to be plain.
"""

import pickle
import pickletools
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from types import NoneType
from typing import IO, Any

import numpy as np
import torch
from mmengine.fileio.handlers import PickleHandler
from mmengine.logging import HistoryBuffer
from torch import Tensor, nn

ORIGIN = 'mmairl_origin'  # where converted weights came from
NUMERIC = re.compile(r'[<>=|]?[biufc]\d{1,2}')
VALUES = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)
GETS, PUTS = ('GET', 'BINGET', 'LONG_BINGET'), ('PUT', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE')
LARGEST = 1_000_000  # values in a tuple, with those inside of it
KEPT_ATTRIBUTES = ('_metadata', ORIGIN)  # of a dictionary of weights: torch's versions of modules, and our note


class Refused(pickle.UnpicklingError):
    """A file holds something that it must not; the text begins with 'it holds'."""


class StandIn:
    """Base class of the safe stand-ins for the names in a pickle.

    It takes a state only if its class says how, and has no other attributes.
    """

    __slots__ = ()

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


def scalar(kind: ArrayType, content: bytes | str) -> np.generic:
    """Stands for the function that makes a NumPy number."""
    (value,) = ArrayType.read(kind, content)
    return value


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


ALLOWED: dict[str, Callable] = {
    'collections.OrderedDict': OrderedDict,
    'numpy.ndarray': Array,
    'numpy.dtype': ArrayType,
    'numpy.core.multiarray._reconstruct': Array,
    'numpy._core.multiarray._reconstruct': Array,
    'numpy.core.multiarray.scalar': scalar,
    'numpy._core.multiarray.scalar': scalar,
    '_codecs.encode': encoded,
    'builtins.bytes': encoded,
    '__builtin__.bytes': encoded,
    'mmengine.logging.history_buffer.HistoryBuffer': History,
    'builtins.getattr': statistic,
    '__builtin__.getattr': statistic,
    'argparse.Namespace': Skipped,  # a script's options
}
FOR_TORCH = [(stand_in, name) for name, stand_in in ALLOWED.items()]


# pickle.Unpickler, the public class in C, keeps its memo in a list as long as an index in the file says, and sets
# attributes on whatever the file names; its twin in Python has neither fault once BUILD is replaced.
class PlainUnpickler(pickle._Unpickler):
    """An unpickler of the names above and no other."""

    def find_class(self, module: str, name: str) -> Callable:
        if f'{module}.{name}' not in ALLOWED:
            raise pickle.UnpicklingError(f'asks to run {module}.{name}')
        return ALLOWED[f'{module}.{name}']

    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, StandIn):
            target.__setstate__(state)
        elif type(target) is not OrderedDict:
            raise Refused(f'it holds attributes for a {type(target).__name__}')

    dispatch = {**pickle._Unpickler.dispatch, pickle.BUILD[0]: load_build}


def refuse_endless_tuples(file: IO[bytes]) -> None:
    """Refuse a pickle of a kilobyte in which tuples of tuples stand for more values than anybody can go through.

    A dictionary that has one as a key looks at all of them, in C, where no signal is heard. Only sizes are followed here.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    for code, value, _ in pickletools.genops(file):
        if code.name == 'MARK':
            marks.append(len(stack))
            continue
        takes = [kind for kind in code.stack_before if kind not in (pickletools.markobject, pickletools.stackslice)]
        start = (marks.pop() if takes != code.stack_before else len(stack)) - len(takes)
        taken = stack[start:] if code.stack_before else []
        if code.name in GETS:
            stack.append(memo[value])
        elif code.name in PUTS:
            memo[len(memo) if value is None else value] = stack[-1]
        else:
            stack[start:] = [1 + sum(taken) * code.name.startswith('TUPLE')] * len(code.stack_after)
        if stack and stack[-1] > LARGEST:
            raise Refused('it holds tuples that stand for more than a million values')


class PlainPickles(PickleHandler):
    """mmengine's reader of .pkl files, such as the annotations of a data set, by the same list."""

    def load_from_fileobj(self, file: IO[bytes], **kwargs: Any) -> Any:
        return plain(PlainUnpickler(file, **kwargs).load())


def plain(value: Any, done: dict[int, Any] | None = None) -> Any:
    """A copy made of dictionaries, lists, numbers, text, tensors and numeric arrays; anything else is refused."""
    if type(value) in VALUES:
        return value
    done = {} if done is None else done
    if id(value) in done:
        if done[id(value)] is plain:
            raise Refused('it holds an object that contains itself')
        return done[id(value)]
    done[id(value)] = plain  # in work
    done[id(value)] = _copied(value, done)
    return done[id(value)]


def _copied(value: Any, done: dict[int, Any]) -> Any:
    kind = type(value)
    if Skipped in (kind, value):
        return None
    if kind in (dict, OrderedDict, Counter):
        new = kind()
        for key, item in kind.items(value):  # an instance may hide it
            if not isinstance(key, (str, bytes, int, float, tuple, NoneType)):
                raise Refused(f'it holds a dictionary with a {type(key).__name__} for a key')
            new[plain(key, done)] = plain(item, done)
        for name in KEPT_ATTRIBUTES if kind is OrderedDict else ():
            if isinstance(vars(value).get(name), dict):
                setattr(new, name, plain(vars(value)[name], done))
        return new
    if kind in (list, tuple, set, frozenset, torch.Size):
        return kind([plain(item, done) for item in value])
    if kind in (Tensor, nn.Parameter):
        return _tensor(value)
    if kind is Array:
        return value.value
    if kind is History:
        values, counts = (np.asarray(plain(numbers, done)) for numbers in (value.values, value.counts))
        if values.dtype.kind not in 'biuf' or counts.dtype.kind not in 'biuf':
            raise Refused('it holds a history of something other than numbers')
        return HistoryBuffer(values, counts, int(value.length))
    if isinstance(value, np.generic) and value.dtype.kind in 'biufc':
        return value
    raise Refused(f'it holds a {kind.__name__}')


def _tensor(value: Tensor) -> Tensor:
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        raise Refused('it holds a tensor that is sparse, quantized or without content')
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise Refused('it holds a tensor that is larger than its content')
    return value.detach()
