"""Folders of images: their order, labels, items, fingerprints and reading from unreliable disks."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data import decode
from mmairl.data.datasets import ImageFolder, UnlabelledFolder, ViewDataset
from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import channel_statistics

NAMES = [
    'b/1.png',
    'b/0.PNG',
    'a/deep/2.jpg',
    'a/3.png',
    'top.png',
    'b/.hidden.png',
    '.git/x.png',
    'c/note.txt',
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / 'root'
    for gray, name in enumerate(NAMES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with (root / name).open('wb') as file:
            Image.new('RGB', (6, 5), (gray,) * 3).save(file, 'PNG')
    return root


def test_folders_are_classes_in_sorted_order(root):
    data = ImageFolder(root)
    assert data.classes == ['a', 'b', 'c']
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert [data.member(index) for index in range(4)] == [
        'a/3.png',
        'a/deep/2.jpg',
        'b/0.PNG',
        'b/1.png',
    ]
    assert data.raw(1)[0, 0, 0] == 2
    assert data.name(0) == str(root / 'a/3.png')
    assert UnlabelledFolder(root).member(0) == 'top.png'
    assert len(UnlabelledFolder(root)) == 5


def test_links_to_folders_are_followed(root, tmp_path):
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'class').symlink_to(root / 'b')
    assert len(ImageFolder(tmp_path / 'other')) == 2


def test_item_has_views_label_and_index(root):
    views = [[dict(type='Solarize', p=1.0, threshold=0)], [dict(type='CenterCrop', size=2)]]
    item = ImageFolder(root, views=views)[3]
    inverted, cropped = item['inputs']
    assert (inverted == 255).all()
    assert cropped.shape == (3, 2, 2)
    assert item['data_samples'] == dict(label=1, index=3)


def test_stored_channels_keep_their_values(tmp_path):
    values = np.random.default_rng(0).integers(0, 65536, (5, 4, 2), np.uint16)
    np.save(tmp_path / 'a.npy', values)
    np.save(tmp_path / 'b.npy', values[..., :1])
    data = UnlabelledFolder(tmp_path, channels=2)
    assert torch.equal(data.raw(0), torch.from_numpy(values).permute(2, 0, 1))
    with raises_code('mixed-images'):
        data.raw(1)
    (tmp_path / 'b.npy').unlink()
    measured = channel_statistics(data)
    torch.testing.assert_close(measured.mean, (values / 65535).mean((0, 1)).tolist())
    torch.testing.assert_close(measured.std, (values / 65535).std((0, 1)).tolist())


def test_statistics_skip_unreadable_images(root):
    (root / 'top.png').write_bytes(b'')
    measured = channel_statistics(UnlabelledFolder(root), workers=1)
    assert measured.images == 4
    assert measured.unreadable == 1
    torch.testing.assert_close(measured.mean, [np.mean([0, 1, 2, 3]) / 255] * 3)


def test_fingerprint_notices_contents_names_and_labels(root, tmp_path):
    before = ImageFolder(root).fingerprint()
    copy = shutil.copytree(root, tmp_path / 'copy')
    assert ImageFolder(copy).fingerprint() == before
    data = (copy / 'b/1.png').read_bytes()
    (copy / 'b/1.png').write_bytes(data[:-1] + b'\0')
    assert ImageFolder(copy).fingerprint() != before
    (copy / 'b/1.png').write_bytes(data)
    (copy / 'b/1.png').rename(copy / 'b/5.png')
    assert ImageFolder(copy).fingerprint() != before
    relabeled = ImageFolder(root)
    relabeled.labels[0] = 1
    assert relabeled.fingerprint() != before


class Counted(ViewDataset):
    """A data set of 1000 images that counts its reads."""

    classes = ['a']

    def __init__(self) -> None:
        super().__init__(None)
        self.labels = torch.zeros(1000, dtype=torch.int64)
        self.read = []

    def raw(self, index: int) -> torch.Tensor:
        self.read.append(index)
        return torch.full((3, 1, 1), index)


def test_fingerprint_reads_256_images():
    data = Counted()
    data.fingerprint()
    assert len(set(data.read)) == 256
    assert {0, 999} <= set(data.read)


def test_temporary_failure_is_retried(root, monkeypatch):
    pauses = []
    data = UnlabelledFolder(root)
    content = (root / 'top.png').read_bytes()
    answers = [OSError(116, 'Stale file handle')] * 3 + [content]

    def read(path: Path) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(Path, 'read_bytes', read)
    monkeypatch.setattr(decode.time, 'sleep', pauses.append)
    assert data.encoded(0) == content
    assert pauses == [0.1, 0.2, 0.4]
    answers[:] = [OSError(5, 'Input/output error')] * 9
    with raises_code('no-answer'):
        data.encoded(0)


def test_missing_file_differs_from_a_lost_folder(root):
    data = UnlabelledFolder(root)
    os.remove(root / 'top.png')
    with pytest.raises(UnreadableImage, match='top.png cannot be read'):
        data.raw(0)
    shutil.rmtree(root)
    with raises_code('lost-folder'):
        data.raw(0)


@pytest.mark.parametrize('kind', [ImageFolder, UnlabelledFolder])
@pytest.mark.parametrize('name', ['empty', 'missing'])
def test_folder_without_images_is_named(tmp_path, kind, name):
    (tmp_path / 'empty').mkdir()
    with raises_code('no-images', str(tmp_path / name)) as raised:
        kind(tmp_path / name)
    assert len(str(raised.value)) < 200 + len(str(tmp_path))


def test_folder_without_permission_is_named(root, monkeypatch):
    def scandir(path: str) -> None:
        raise PermissionError(13, 'Permission denied', path)

    monkeypatch.setattr(os, 'scandir', scandir)
    with raises_code('unlisted-folder'):
        UnlabelledFolder(root)
