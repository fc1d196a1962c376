"""The allow-list of pickles: the names on the list are built, other names are rejected, and no small file takes minutes to
read.
"""

import io
import pickle
from collections import OrderedDict
from pathlib import Path

import mmengine
import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.logging import HistoryBuffer

from mmairl.checkpoints import pickles
from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.pickles import ALLOWED_IN_PICKLES, PlainUnpickler, plain
from mmairl.engine.checkpoint import trust_mmengine_checkpoints
from mmairl.errors import UserError

# Python hashes integers modulo this number, so all of its multiples collide in a dictionary.
COLLIDING = 2**61 - 1


class Global:
    """A global in a pickle: the name of a class or function, which need not exist."""

    def __init__(self, name: str) -> None:
        self.name = name


class Call:
    """A call of a global in a pickle, with an optional state for the result."""

    def __init__(self, name: str, *arguments: object, state: object = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state = state


class Writer(pickle._Pickler):
    """Write `Global` and `Call` objects to a pickle without importing or calling what they name."""

    def save(self, value: object, *how: object) -> None:
        if isinstance(value, Global):
            module, _, name = value.name.rpartition('.')
            self.write(pickle.GLOBAL + f'{module}\n{name}\n'.encode())
        elif isinstance(value, Call):
            self.save(Global(value.name))
            self.save(value.arguments)
            self.write(pickle.REDUCE)
            if value.state is not None:
                self.save(value.state)
                self.write(pickle.BUILD)
        else:
            super().save(value, *how)

    def memoize(self, value: object) -> None:
        """Do nothing: the pickler's memo is keyed by ids, which repeat for temporary objects."""


def pickled(value: object) -> bytes:
    file = io.BytesIO()
    Writer(file, 4).dump(value)
    return file.getvalue()


def unpickled(value: object) -> object:
    return plain(PlainUnpickler(io.BytesIO(pickled(value)), encoding='latin1').load())


def legacy_storage() -> bytes:
    file = io.BytesIO()
    torch.save(torch.arange(6.0).storage(), file, _use_new_zipfile_serialization=False)
    return file.getvalue()


BYTES = b'\x05\0\0\0\x07\0\0\0'
INT32 = Call('numpy.dtype', 'i4', False, True, state=(3, '<', None, None, None, -1, -1, 0))
ARRAY = Call('numpy.ndarray', (0,), state=(1, (2,), INT32, False, BYTES))
HISTORY = 'mmengine.logging.history_buffer.HistoryBuffer'
STORAGE = Call('torch.storage._load_from_bytes', legacy_storage())
LOGGED = dict(_log_history=[1.0, 3.0], _count_history=[1, 1], max_length=9)
TENSOR = Call('torch._utils._rebuild_tensor_v2', STORAGE, 1, (2, 2), (2, 1), False, OrderedDict())
# Each entry of the allow-list has a pickle that uses it, and the value that this pickle must give.
BUILT = {
    'collections.OrderedDict': (Call('collections.OrderedDict', [('a', 1)]), OrderedDict(a=1)),
    'numpy.ndarray': (ARRAY, np.array([5, 7], np.int32)),
    'numpy.dtype': (ARRAY, np.array([5, 7], np.int32)),
    HISTORY: (Call(HISTORY, state=LOGGED), HistoryBuffer([1.0, 3.0], [1, 1])),
    'argparse.Namespace': (Call('argparse.Namespace', state=dict(lr=0.1)), None),
    'torch.storage._load_from_bytes': (TENSOR, torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
    'torch._utils._rebuild_tensor_v2': (TENSOR, torch.tensor([[1.0, 2.0], [3.0, 4.0]])),
}
for name in ('_codecs.encode', 'builtins.bytes', '__builtin__.bytes'):
    BUILT[name] = Call(name, 'ä', 'latin1'), b'\xe4'
for name in ('builtins.getattr', '__builtin__.getattr'):
    BUILT[name] = Call(name, Global(HISTORY), 'mean'), None
for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
    state = (1, (2,), INT32, False, BYTES)
    reconstruct = Call(f'{module}._reconstruct', Global('numpy.ndarray'), (0,), b'b', state=state)
    BUILT[f'{module}._reconstruct'] = reconstruct, np.array([5, 7], np.int32)
    BUILT[f'{module}.scalar'] = Call(f'{module}.scalar', INT32, BYTES[:4]), np.int32(5)


@pytest.mark.parametrize('name', ALLOWED_IN_PICKLES)
def test_an_allowed_name_builds_its_value(name):
    call, expected = BUILT[name]
    value = unpickled(call)
    assert type(value) is type(expected)
    if isinstance(expected, HistoryBuffer):
        assert [list(part) for part in value.data] == [list(part) for part in expected.data]
    elif isinstance(expected, (np.ndarray, torch.Tensor)):
        assert value.dtype == expected.dtype and value.tolist() == expected.tolist()
    else:
        assert value == expected


REFUSED = [
    Call('os.system', 'touch CANARY'),
    Call('posix.system', 'touch CANARY'),
    Call('os.mkdir', 'CANARY'),
    Call('builtins.eval', "__import__('os').mkdir('CANARY')"),
    Call('builtins.open', 'CANARY', 'w'),
    Call('builtins.getattr', Global('collections.OrderedDict'), 'mro'),
    Call('builtins.getattr', Global(HISTORY), '__class__'),
    Call('builtins.setattr', Global('collections.OrderedDict'), 'a', 1),
    Call('builtins.type', 'A', (), {}),
    Call('torch.load', 'CANARY'),
    Call('operator.attrgetter', 'mro'),
    Call('functools.partial', Global('os.mkdir'), 'CANARY'),
    Call('importlib.import_module', 'antigravity'),
    Call('pickle.loads', b'.'),
    Call('types.CodeType', 0),
    Call('copyreg._reconstructor', Global('os.system'), Global('builtins.object'), None),
    Call('mmairl.io.write_text', 'CANARY', ''),
    Call('mmairl.checkpoints.pickles.ALLOWED.update', {}),
    Call('collections.OrderedDict.fromkeys', 'ab'),
    Call('numpy.dtype', 'O'),
    Call('numpy.ndarray', (1,), state=(1, (1,), Call('numpy.dtype', 'V8'), False, b'12345678')),
    Call('torch.storage._load_from_bytes', pickled(Call('os.mkdir', 'CANARY'))),
    Call('torch._utils._rebuild_tensor_v2', STORAGE, 0, (7,), (1,), False, OrderedDict()),
    Call('torch._utils._rebuild_tensor_v2', STORAGE, -1, (2,), (1,), False, OrderedDict()),
    Call('torch._utils._rebuild_tensor_v2', STORAGE, 0, (10**6, 6), (0, 1), False, OrderedDict()),
]


@pytest.mark.parametrize('call', REFUSED, ids=lambda call: call.name)
def test_other_names_are_rejected_and_not_called(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('a.pkl').write_bytes(pickled(dict(a=call)))
    with pytest.raises(UserError):
        load_checkpoint('a.pkl')
    assert [path.name for path in tmp_path.iterdir()] == ['a.pkl']


def test_dumped_results_with_tensors_are_read(tmp_path):
    """mmengine's DumpResults writes these files for `tools/test.py --out`."""
    trust_mmengine_checkpoints()
    results = [dict(scores=torch.rand(3, 4)[:, 1:], labels=torch.arange(3), half=torch.ones(2).half(), id=7)]
    mmengine.dump(results, tmp_path / 'results.pkl')
    (loaded,) = mmengine.load(tmp_path / 'results.pkl')
    assert loaded.keys() == results[0].keys() and loaded['id'] == 7
    for key in ('scores', 'labels', 'half'):
        assert torch.equal(loaded[key], results[0][key]) and loaded[key].dtype == results[0][key].dtype


def test_large_annotations_are_read(tmp_path, monkeypatch):
    """The limit on values grows with the size of the file, because each value that is not shared takes at least a byte."""
    trust_mmengine_checkpoints()
    monkeypatch.setattr(pickles, 'LARGEST', 1000)
    mmengine.dump(annotations := [[index % 7, 0.5] for index in range(1000)], tmp_path / 'a.pkl')
    assert mmengine.load(tmp_path / 'a.pkl') == annotations


@pytest.mark.parametrize('suffix', ['pth', 'pkl'])
@pytest.mark.parametrize('key', [np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True)])
def test_numpy_number_may_be_a_key(key, suffix, tmp_path):
    path = tmp_path / f'a.{suffix}'
    content = dict(scores={key: 1.0})
    torch.save(content, path) if suffix == 'pth' else path.write_bytes(pickle.dumps(content))
    ((loaded, value),) = load_checkpoint(path)['scores'].items()
    assert (loaded, value) == (key.item(), 1.0) and type(loaded) in (float, int, bool)


def doubled(kind: type, value: object, times: int = 40) -> object:
    """Return nested containers of depth `times`. Each holds the next one twice, so they expand to 2 ** times values."""
    for _ in range(times):
        value = kind([value, value]) if kind is not dict else dict(a=value, b=value)
    return value


HEAVY = {
    'lists in lists': lambda: dict(mmairl_origin=doubled(list, 'x')),
    'dictionaries in dictionaries': lambda: dict(mmairl_origin=doubled(dict, 'x')),
    'lists in tuples': lambda: dict(settings={'model.backbone.num_heads': doubled(list, (1,))}),
    'tuples in tuples': lambda: dict(settings={'model.backbone.num_heads': doubled(tuple, 1)}),
    'one text many times': lambda: dict(mmairl_origin=['x' * 300_000] * 60_000),
    'colliding numbers': lambda: {COLLIDING * (number + 1): 0 for number in range(1000)},
    'a number beyond 61 bits': lambda: {2**61: 0},
    'colliding complex numbers': lambda: {complex(2**50 - 1000003 * number, number): 0 for number in range(1000)},
    'colliding tuples': lambda: {(COLLIDING * (number + 1), 0): 0 for number in range(1000)},
    'colliding pairs': lambda: OrderedDict(((COLLIDING * number,), 0) for number in range(1000)),
    'one tuple as many keys': lambda: [{large: 0} for large in [doubled(tuple, 1, 18)] for _ in range(500)],
}


class SizeOfList:
    """An object that is pickled as a torch.Size built from a list. `refuse_endless` does not track the items of lists."""

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __reduce__(self) -> tuple:
        return torch.Size, (self.items,)


@pytest.mark.parametrize('suffix', ['pth', 'pkl'])
@pytest.mark.parametrize('case', HEAVY)
def test_small_file_with_many_values_is_rejected(case, suffix, tmp_path):
    path = tmp_path / f'a.{suffix}'
    content = dict(meta=HEAVY[case](), state_dict={'backbone.conv1.weight': torch.ones(1)})
    torch.save(content, path) if suffix == 'pth' else path.write_bytes(pickle.dumps(content))
    assert path.stat().st_size < 2**20
    with raises_code('unsafe-checkpoint', match='it holds'):
        load_checkpoint(path)


def test_size_of_a_list_is_rejected(tmp_path):
    size = SizeOfList([0] * 100_000)
    torch.save(dict(meta=[{size: 0} for _ in range(500)]), tmp_path / 'a.pth')
    with raises_code('unsafe-checkpoint', match='it holds a size'):
        load_checkpoint(tmp_path / 'a.pth')
    shapes = {torch.Size((2, 3)): torch.Size((4,)), 'empty': torch.Size(())}
    torch.save(shapes, tmp_path / 'b.pth')
    assert load_checkpoint(tmp_path / 'b.pth') == shapes
