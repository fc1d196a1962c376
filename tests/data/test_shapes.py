"""Shapes and Digits: images are reproducible and cached, and raw pixels do not reveal the labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code

from mmairl.data import shapes
from mmairl.data.shapes import Digits, Shapes


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    return tmp_path / 'mmairl' / 'shapes'


def test_shape_depends_on_seed_split_and_index():
    few, many = Shapes('val', 12, 32), Shapes('val', 30, 32)
    assert np.array_equal(few.images, many.images[:12])
    assert not np.array_equal(few.images, Shapes('train', 12, 32).images)
    assert not np.array_equal(few.images, Shapes('val', 12, 32, seed=1).images)
    item = many[13]
    assert len(many) == 30 and len(many.classes) >= 10
    assert item['inputs'][0].shape == (3, 32, 32) and item['inputs'][0].dtype == torch.uint8
    assert item['data_samples'] == dict(label=13 % len(many.classes), index=13)
    with raises_code('unknown-split'):
        Shapes('test', 4)


def test_broken_cache_is_redrawn(cache, monkeypatch):
    images = np.array(Shapes('val', 12, 32).images)
    (file,) = cache.iterdir()
    monkeypatch.setattr(shapes, 'draw_shapes', lambda *args: pytest.fail('the images were drawn again'))
    assert np.array_equal(Shapes('val', 12, 32).images, images)
    monkeypatch.undo()
    monkeypatch.setenv('XDG_CACHE_HOME', str(cache.parent.parent))
    file.write_bytes(file.read_bytes()[:200])
    assert np.array_equal(Shapes('val', 12, 32).images, images)
    monkeypatch.setattr(shapes, 'cache', lambda: Path('/dev/null'))
    assert np.array_equal(Shapes('val', 12, 32).images, images), 'the images differ if the cache cannot be written'


@pytest.mark.slow
def test_raw_pixels_do_not_reveal_the_kind():
    train, test = Shapes('train', 1200, 48), Shapes('val', 300, 48)
    x, q = (torch.from_numpy(np.array(part.images)).flatten(1).float() / 255 for part in (train, test))
    x, q = (torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1) for rows in (x, q))
    votes = train.labels[(q @ x.T).topk(20).indices].mode(dim=1).values
    chance = 1 / len(train.classes)
    assert (votes == test.labels).float().mean() < 2 * chance


def test_digits_are_split_class_by_class():
    train, val = Digits('train', size=16), Digits('val', size=16)
    assert len(train) + len(val) == 1797
    assert (val.labels.bincount() / train.labels.bincount()).std() < 0.02
    assert train.raw(0).shape == (3, 16, 16) and train.raw(0).dtype == torch.uint8
    assert not torch.equal(Digits('val', size=16, seed=1).labels, val.labels)
