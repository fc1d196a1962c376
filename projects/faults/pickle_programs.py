"""Run random pickle programs, made of opcodes and allowed names, and check which objects they can create.

>>> run_programs(20_000, seed=0, folder=Path('/tmp/programs'))['failed']  # doctest: +SKIP
0
"""

import io
import random
import struct
from collections import Counter, OrderedDict
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.pickles import ALLOWED
from mmairl.errors import UserError
from projects.faults.checkpoints import with_record

# Names that torch's own unpickler allows. Some of these functions call or change their arguments.
OF_TORCH = (
    'torch._utils._rebuild_tensor_v2',
    'torch._utils._rebuild_parameter',
    'torch._tensor._rebuild_from_type_v2',
    'torch.FloatStorage',
    'torch.Tensor',
    'torch.float32',
    'torch.Size',
    'collections.Counter',
    'builtins.set',
    'builtins.bytearray',
)
TEXTS = (
    'f4',
    'i8',
    'O',
    'O8',
    'V8',
    '<f8',
    'b',
    'mean',
    'latin1',
    '<',
    '',
    '_log_history',
    '_count_history',
    'items',
)
PLAIN = (bool, int, float, complex, str, bytes, bytearray, NoneType, torch.dtype, torch.device)


def run_programs(count: int, seed: int, folder: Path) -> dict[str, int]:
    """Read each of `count` random programs from a .pkl and from a .pth, and count the outcomes.

    'failed' counts the forbidden outcomes: an exception other than a one-line UserError, an object that is neither an array,
    a tensor nor a plain value, or a class that was changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    buffer, draw, counts = (
        io.BytesIO(),
        random.Random(seed),
        Counter(refused=0, plain=0, arrays=0, failed=0),
    )
    torch.save(dict(a=torch.ones(3)), buffer)
    attributes = {kind: dict(vars(kind)) for kind in (*ALLOWED.values(), HistoryBuffer)}
    for number in range(count):
        program = b'\x80\x02}' + text('a') + _program(draw) + b's.'
        for name, content in (
            ('a.pkl', program),
            ('a.pth', with_record(buffer.getvalue(), '/data.pkl', program)),
        ):
            (folder / name).write_bytes(content)
            result = outcome(folder / name)
            if attributes != {kind: dict(vars(kind)) for kind in attributes}:
                result = 'failed'
            counts[result] += 1
            if result == 'failed':
                (folder / f'failed_{number}_{name}').write_bytes(content)
    return dict(counts)


def outcome(path: Path) -> str:
    try:
        value = load_checkpoint(path)
    except UserError as error:
        return 'refused' if '\n' not in str(error) else 'failed'
    except Exception:
        return 'failed'
    kinds = set(_kinds(value))
    if not all(kinds):
        return 'failed'
    return 'arrays' if kinds & {'array', 'tensor', 'history'} else 'plain'


def _kinds(value: Any) -> list[str]:
    """Return the kinds of all parts of a value. The kind is '' for anything but an array, a tensor or a plain value."""
    if type(value) in PLAIN or (isinstance(value, np.generic) and value.dtype.kind in 'biufc'):
        return ['plain']
    if type(value) in (dict, OrderedDict, Counter):
        return [kind for pair in value.items() for item in pair for kind in _kinds(item)] or [
            'plain'
        ]
    if type(value) in (list, tuple, set, frozenset, torch.Size):
        return [kind for item in value for kind in _kinds(item)] or ['plain']
    if type(value) is np.ndarray:
        return ['array' if value.dtype.kind in 'biufc' else '']
    if type(value) is HistoryBuffer:
        return ['history' if all(part.dtype.kind in 'biufc' for part in value.data) else '']
    return ['tensor' if type(value) is torch.Tensor else '']


def text(value: str) -> bytes:
    content = value.encode()
    return b'X' + struct.pack('<I', len(content)) + content


def _name(draw: random.Random) -> bytes:
    module, _, name = draw.choice([*ALLOWED, *ALLOWED, *OF_TORCH]).rpartition('.')
    return f'c{module}\n{name}\n'.encode()


def _value(draw: random.Random) -> bytes:
    kind = draw.randrange(12)
    if kind == 0:
        return b'K' + bytes([draw.randrange(4)])
    if kind == 1:
        return draw.choice(
            [
                b'N',
                b'\x88',
                b'\x89',
                b')',
                b']',
                b'}',
                b'\x8f',
                b'J\xff\xff\xff\xff',
                b'G?\xf0' + bytes(6),
            ]
        )
    if kind == 2:
        return b'U\x08' + draw.randbytes(8)
    if kind == 3:
        return (
            b'c_codecs\nencode\n'
            + text(''.join(map(chr, draw.randbytes(8))))
            + text('latin1')
            + b'\x86R'
        )
    if kind == 4:
        return _array(draw)
    if kind == 5:
        return (
            b'('
            + text('storage')
            + b'ctorch\nFloatStorage\n'
            + text('0')
            + text('cpu')
            + b'K\x03tQ'
        )
    return text(draw.choice(TEXTS)) if kind < 8 else _name(draw) if kind < 10 else _array(draw)


def _array(draw: random.Random) -> bytes:
    """Return the opcodes with which NumPy pickles an array. The dtype, flags and length of the array may be wrong."""
    dtype = (
        b'cnumpy\ndtype\n'
        + text(draw.choice(['f4', 'i8', 'f8', 'u1', 'O8', 'V4', 'M8']))
        + b'\x89\x88\x87R'
    )
    flags = bytes([draw.choice([0, 0, 0, 63, 255])])
    state = b'(K\x03' + text('<') + b'NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK' + flags + b'tb'
    shape = b'K' + bytes([draw.choice([1, 1, 2, 8])]) + b'\x85'
    content = b'c_codecs\nencode\n' + text('\x01' * 8) + text('latin1') + b'\x86R'
    empty = (
        b'cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85' + text('b') + b'\x87R'
    )
    return empty + b'(K\x01' + shape + dtype + draw.choice([state, b'']) + b'\x89' + content + b'tb'


def _program(draw: random.Random) -> bytes:
    """Return random opcodes that leave one value. Most programs run to their end, because the stack never underflows."""
    code, depth, memo = bytearray(_value(draw)), 1, 0
    for _ in range(draw.randrange(14)):
        act = draw.randrange(10)
        if act < 4 or depth < 2:
            code += _value(draw)
            depth += 1
        elif act == 4:
            code += b'\x86'  # build a tuple of two values
            depth -= 1
        elif act == 5:
            # Call a function, or create an object of a class.
            code += draw.choice([b'R', b'\x85R', b'\x81', b'\x85\x81'])
            depth -= 1
        elif act == 6:
            code += b'b'  # use the top value as the state of the object below it
            depth -= 1
        elif act == 7:
            code += b'a'  # append the top value to the list below it
            depth -= 1
        elif act == 8 and depth > 2:
            code += b's'  # set an item of the dictionary below the two top values
            depth -= 2
        elif memo and draw.random() < 0.5:
            code += b'h' + bytes([draw.randrange(memo)])
            depth += 1
        else:
            code += b'q' + bytes([memo])
            memo += 1
    return bytes(code) + b''.join(b'\x86' for _ in range(depth - 1))
