"""Folders that Hugging Face's `datasets` saved, read by our decoder; skipped where that package is not installed."""

import builtins
import io

import numpy as np
import pytest
import torch
from PIL import Image

from mmairl.data.hugging_face import HuggingFaceDataset
from mmairl.data.images import UnreadableImage
from mmairl.errors import UserError


def png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), format='PNG')
    return buffer.getvalue()


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (6, 9, 7, 3), dtype=np.uint8)


@pytest.fixture
def saved(pixels, tmp_path):
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    files = [png(one) for one in pixels]
    files[4] = files[4][:40]
    (tmp_path / 'beside.png').write_bytes(files[5])
    rows = [dict(bytes=one, path=None) for one in files[:5]] + [dict(bytes=None, path=str(tmp_path / 'beside.png'))]
    kinds = datasets.Features(picture=datasets.Image(), kind=datasets.ClassLabel(names=['cat', 'dog']))
    table = datasets.Dataset.from_dict(dict(picture=rows, kind=[0, 1, 1, 0, 1, 0]), features=kinds)
    table.save_to_disk(tmp_path / 'one')
    datasets.DatasetDict(train=table, test=table.select([1])).save_to_disk(tmp_path / 'two')
    table.remove_columns('picture').save_to_disk(tmp_path / 'none')
    table.remove_columns('kind').save_to_disk(tmp_path / 'bare')
    return tmp_path


def test_images_and_labels_are_those_that_were_saved(saved, pixels):
    flip = [dict(type='RandomFlip', p=1.0)]
    found = HuggingFaceDataset(saved / 'one', views=[[], flip])
    assert len(found) == 6 and found.classes == ['cat', 'dog'] and found.labels.tolist() == [0, 1, 1, 0, 1, 0]
    for index in (0, 1, 2, 3, 5):
        image = torch.from_numpy(pixels[index]).permute(2, 0, 1)
        first, second = found[index]['inputs']
        assert torch.equal(first, image) and torch.equal(second, image.flip(-1))
    with pytest.raises(UnreadableImage, match='image 4 of .*one'):
        found.raw(4)
    (only,) = HuggingFaceDataset(saved / 'two', split='test')[0]['inputs']
    assert torch.equal(only, torch.from_numpy(pixels[1]).permute(2, 0, 1))
    assert HuggingFaceDataset(saved / 'bare').labels.tolist() == [-1] * 6


def test_what_is_wrong_is_one_sentence(saved):
    for name, split, said in [
        ('two', None, 'has the splits train, test, and split=None'),
        ('two', 'val', "has the splits train, test, and split='val'"),
        ('one', 'train', 'has no splits'),
        ('none', None, 'has no column of images among kind'),
        ('absent', None, 'is no folder that dataset.save_to_disk'),
    ]:
        with pytest.raises(UserError, match=said):
            HuggingFaceDataset(saved / name, split=split)


def test_without_the_package_it_says_what_to_install(monkeypatch, tmp_path):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == 'datasets':
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, '__import__', refuse)
    with pytest.raises(UserError, match='pip install datasets'):
        HuggingFaceDataset(tmp_path)
