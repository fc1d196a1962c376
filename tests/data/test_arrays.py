"""CIFAR's pickles and STL-10's binaries, made small; a pickle that is not the published one is never opened."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from mmairl.data.published import CIFAR10, CIFAR100, STL10
from torchvision import datasets

from mmairl.errors import UserError

CIFARS = {
    CIFAR10: ('cifar-10-batches-py', [f'data_batch_{i}' for i in range(1, 6)], 'test_batch', 'batches.meta', 'labels'),
    CIFAR100: ('cifar-100-python', ['train'], 'test', 'meta', 'fine_labels'),
}


def images(indices: range) -> np.ndarray:
    """Image i, (3, 32, 32): red i, green its row, blue its column."""
    at = np.arange(32)
    planes = [np.stack([np.full((32, 32), i), np.tile(at[:, None], 32), np.tile(at, (32, 1))]) for i in indices]
    return np.array(planes, np.uint8)


def write(folder: Path, kind: type[CIFAR10]) -> dict[str, str]:
    """The files of a set of 40 training and 10 test images whose labels are their number modulo 2, and their md5."""
    name, train, test, meta, key = CIFARS[kind]
    (folder / name).mkdir(parents=True)
    each = 40 // len(train)
    batches = {file: range(i * each, (i + 1) * each) for i, file in enumerate(train)}
    md5 = {}
    for file, indices in {**batches, test: range(40, 50)}.items():
        batch = {'data': images(indices).reshape(len(indices), -1), key: [i % 2 for i in indices]}
        (folder / name / file).write_bytes(pickle.dumps(batch))
    names = 'label_names' if kind is CIFAR10 else 'fine_label_names'
    (folder / name / meta).write_bytes(pickle.dumps({names: ['even', 'odd']}))
    for file in (*train, test, meta):
        md5[file] = hashlib.md5((folder / name / file).read_bytes()).hexdigest()
    return md5


@pytest.fixture(params=CIFARS, ids=lambda kind: kind.__name__)
def cifar(request, tmp_path, monkeypatch) -> tuple[type[CIFAR10], Path]:
    kind = request.param
    md5 = write(tmp_path, kind)
    _, train, test, meta, _ = CIFARS[kind]
    theirs = {CIFAR10: datasets.CIFAR10, CIFAR100: datasets.CIFAR100}[kind]
    monkeypatch.setattr(theirs, 'train_list', [[file, md5[file]] for file in train])
    monkeypatch.setattr(theirs, 'test_list', [[test, md5[test]]])
    monkeypatch.setattr(theirs, 'meta', {**theirs.meta, 'md5': md5[meta]})
    return kind, tmp_path


def contents(data) -> list[tuple[int, int]]:
    return [(int(data.raw(i)[0, 0, 0]), int(data.labels[i])) for i in range(len(data))]


def test_cifar_holds_a_tenth_out_and_keeps_the_test(cifar):
    kind, root = cifar
    train, val, both, test = (contents(kind(root, split)) for split in ('train', 'val', 'train+val', 'test'))
    assert both == [(i, i % 2) for i in range(40)] and len(val) == 4 and sorted(train + val) == both
    assert test == [(i, i % 2) for i in range(40, 50)]
    assert contents(kind(root, 'val', seed=1)) != val
    data = kind(root, 'test')
    assert data.classes == ['even', 'odd'] and data.metric == 'top-1' and data.images.dtype == torch.uint8


def test_rows_columns_and_channels_of_cifar_are_where_they_belong(cifar):
    kind, root = cifar
    data = kind(root, 'test', views=[[dict(type='CenterCrop', size=32)]])
    assert data.raw(3)[:, 4, 9].tolist() == [43, 4, 9]
    assert data[3]['inputs'][0][:, 4, 9].tolist() == [43, 4, 9]
    data.raw(3).zero_()
    assert data.raw(3)[0, 0, 0] == 43, 'what a view does to its image stays with the view'


class Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_that_is_not_the_published_one_is_never_opened(cifar):
    kind, root = cifar
    folder, train, test, meta, _ = CIFARS[kind]
    for file in (train[0], test, meta):
        before = (root / folder / file).read_bytes()
        (root / folder / file).write_bytes(pickle.dumps(Trap(root / 'sprung')))
        for split in ('train', 'test'):
            with pytest.raises(UserError, match='unchanged by their md5'):
                kind(root, split)
        assert not (root / 'sprung').exists()
        (root / folder / file).write_bytes(before)
    pickle.loads(pickle.dumps(Trap(root / 'sprung')))
    assert (root / 'sprung').exists(), 'the trap works'


@pytest.mark.parametrize('kind', [CIFAR10, CIFAR100, STL10])
def test_a_missing_set_is_one_sentence_with_place_layout_and_source(kind, tmp_path):
    with pytest.raises(UserError, match=f'{kind.__name__} cannot be read from {tmp_path}/gone') as caught:
        kind(tmp_path / 'gone')
    assert kind.layout in str(caught.value) and kind.source in str(caught.value)
    assert 'download=True' not in str(caught.value)


@pytest.fixture
def stl(tmp_path: Path) -> Path:
    folder = tmp_path / 'stl10_binary'
    folder.mkdir()
    (folder / 'class_names.txt').write_text('airplane\nbird\ncar\n')
    at = np.arange(96)
    for part, numbers in (('train', (1, 2)), ('test', (3,)), ('unlabeled', (4, 5, 6))):
        # the format: channel by channel, each column by column
        planes = [np.stack([np.full((96, 96), i), np.tile(at, (96, 1)), np.tile(at[:, None], 96)]) for i in numbers]
        np.array(planes, np.uint8).tofile(folder / f'{part}_X.bin')
        if part != 'unlabeled':
            np.array([i % 3 + 1 for i in numbers], np.uint8).tofile(folder / f'{part}_y.bin')
    return tmp_path


def test_stl_counts_labels_from_0_and_turns_its_columns_into_rows(stl):
    train = STL10(stl)
    assert contents(train) == [(1, 1), (2, 2)] and train.classes == ['airplane', 'bird', 'car']
    assert train.raw(0)[:, 4, 9].tolist() == [1, 4, 9], 'red is the number, green the row, blue the column'
    assert contents(STL10(stl, 'test')) == [(3, 0)]
    assert contents(STL10(stl, 'unlabeled')) == [(4, -1), (5, -1), (6, -1)]


def test_stl_reads_as_torchvision_does(stl, monkeypatch):
    monkeypatch.setattr(datasets.STL10, '_check_integrity', lambda self: True)
    for split in ('train', 'test', 'unlabeled'):
        theirs, ours = datasets.STL10(stl, split), STL10(stl, split)
        assert theirs.labels.astype(np.int64).tolist() == ours.labels.tolist() and theirs.classes == ours.classes
        assert all(np.array_equal(theirs.data[i], ours.raw(i)) for i in range(len(ours)))


def test_stl_has_no_validation_split_and_refuses_files_that_were_cut_short(stl):
    with pytest.raises(UserError, match="no split 'val'; use one of 'train', 'test', 'unlabeled'"):
        STL10(stl, 'val')
    file = stl / 'stl10_binary' / 'train_X.bin'
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match='STL10 cannot be read'):
        STL10(stl)
    (stl / 'stl10_binary' / 'unlabeled_X.bin').rename(file)
    with pytest.raises(UserError, match='STL10 cannot be read'):
        STL10(stl)
