"""Feature extraction and the feature store.

Stored files are complete and reused, and a second run waits for a file that the first run writes.
"""

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from filelock import FileLock
from harness.errors import raises_code
from PIL import Image
from torch import nn
from torch.utils.data import Subset

from mmairl.data.datasets import ImageFolder
from mmairl.evaluation import feature_store
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.feature_store import read_rows, stored
from mmairl.evaluation.features import Extraction, extract
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.registry import DATASETS

Noise = DATASETS.get('Noise')  # The conftest of this folder registers the data set
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
HOW = Extraction(MEAN, STD)
VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


class Channels(nn.Module):
    """Return two feature maps. The second one equals the images, so its average is known."""

    def forward(self, images):
        return images[:, :1], images


def normalised(dataset) -> np.ndarray:
    images = dataset.images.numpy().astype(np.float64) / 255
    return (images - np.reshape(MEAN, (1, 3, 1, 1))) / np.reshape(STD, (1, 3, 1, 1))


def in_store(root: Path) -> list[str]:
    """Return the names of all files in the store except empty locks, which are never removed."""
    return [path.name for path in root.iterdir() if path.suffix != '.lock' or path.stat().st_size]


def test_features_are_the_pooled_map_or_the_pixels():
    dataset = Noise()
    extracted = extract(Channels(), dataset, Extraction(MEAN, STD, batch_size=7))
    np.testing.assert_allclose(extracted.x, normalised(dataset).mean(axis=(2, 3)), atol=1e-5)
    assert extracted.x.dtype == torch.float32 and torch.equal(extracted.y, dataset.labels)
    np.testing.assert_allclose(extract(None, dataset, HOW).x, normalised(dataset).reshape(45, -1), atol=1e-5)


def test_bfloat16_features_are_close_to_float32(cfg, tmp_path):
    backbone, dataset = load_backbone(cfg, seed=1), Noise()
    whole, fast = (extract(backbone, dataset, replace(HOW, precision=name)).x for name in ('float32', 'bfloat16'))
    assert fast.dtype == torch.float32 and not torch.equal(whole, fast)
    assert ((whole - fast).norm(dim=1) < 0.02 * whole.norm(dim=1)).all()
    scores = []
    for cfg.evaluation.precision in ('float32', 'bfloat16'):
        scores.append(evaluate(cfg, 'knn', 'random', settings=settings_for('knn', ks=(3,), cache=tmp_path)).scores)
    assert scores[0] == scores[1] and len(list(tmp_path.glob('*.npy'))) == 4, (
        'the scores differ, or both precisions share stored features'
    )
    cfg.evaluation.precision = 'int8'
    with raises_code('unknown-precision'):
        evaluate(cfg, 'knn', 'random', settings=settings_for('knn'))


def test_unlabeled_data_and_nan_features_are_errors(tmp_path):
    class Breaks(nn.Module):
        def forward(self, images):
            return images.mean((2, 3)).masked_fill(images.mean((1, 2, 3))[:, None] > 0.5, torch.nan)

    store = partial(stored, tmp_path / 'f/key.npy')
    unlabelled = Noise()
    unlabelled.labels = torch.full((45,), -1)
    with raises_code('unlabeled-images'):
        store(None, unlabelled, HOW)
    for find in (extract, store):
        with raises_code('features-not-finite', match='image 2'):
            find(Breaks(), Noise(), HOW)
    assert in_store(tmp_path / 'f') == []


def test_unreadable_images_have_no_row_and_are_listed(tmp_path, monkeypatch):
    for number in range(10):
        image = tmp_path / f'images/{"ab"[number // 5]}/{number}.png'
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(image)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    whole = extract(backbone, ImageFolder(tmp_path / 'images', views=VIEW), HOW)
    assert whole.unreadable == ()
    for name in ('a/4.png', 'b/6.png'):
        (tmp_path / 'images' / name).write_bytes(b'')
    dataset, readable = ImageFolder(tmp_path / 'images', views=VIEW), [0, 1, 2, 3, 5, 7, 8, 9]
    results = [extract(backbone, dataset, HOW), stored(tmp_path / 'k.npy', backbone, dataset, HOW)]
    monkeypatch.setattr(feature_store, '_fill', lambda *_: pytest.fail('the features were extracted again'))
    for one in (*results, stored(tmp_path / 'k.npy', backbone, dataset, HOW)):
        assert one.unreadable == (4, 6)
        assert torch.equal(one.x, whole.x[readable]) and torch.equal(one.y, whole.y[readable])
    assert backbone[1].num_batches_tracked == 0, 'the extraction changed the statistics of batch norm'


def test_interrupted_extraction_leaves_no_file(tmp_path, monkeypatch):
    original, path = Extraction.batches, tmp_path / 'f/key.npy'

    def break_off(self, *args, **kwargs):
        yield next(original(self, *args, **kwargs))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Extraction, 'batches', break_off)
        stored(path, None, Noise(), HOW)
    assert in_store(tmp_path / 'f') == []
    # A killed run has left this file behind.
    path.with_name(f'.key.npy.{platform.node()}.99999999.tmp').write_bytes(b'1' * 5000)
    path.with_name('.key.npy.lock').touch()
    assert torch.equal(stored(path, None, Noise(), HOW).x, extract(None, Noise(), HOW).x)
    assert in_store(tmp_path / 'f') == ['key.npy']


def test_process_without_images_extracts_nothing(tmp_path):
    dataset = Subset(DATASETS.build(dict(type='Shapes', count=1, size=32)), [])
    assert list(Extraction([0.5] * 3, [0.5] * 3).batches(None, dataset)) == []


def test_damaged_file_and_failed_lock_are_errors(tmp_path):
    path, whole = tmp_path / 'key.npy', np.zeros((9, 3), np.float32)
    np.save(path, whole)
    for content in (path.read_bytes(), path.read_bytes()[:150], b'text'):
        path.write_bytes(content)
        with raises_code('unreadable-features'):
            read_rows(path, 10)
    with raises_code('cannot-write'):
        stored(path / 'key.npy', None, Noise(), HOW)


def test_second_run_waits_for_the_first_extraction(tmp_path, monkeypatch):
    path, waits = tmp_path / 'key.npy', Event()
    monkeypatch.setattr(feature_store, 'print_log', lambda *_, **__: waits.set())
    monkeypatch.setattr(feature_store, '_fill', lambda *_: pytest.fail('the features were extracted twice'))
    with ThreadPoolExecutor(1) as pool:
        with FileLock(tmp_path / '.key.npy.lock'):
            second = pool.submit(stored, path, None, Noise(), HOW)
            assert waits.wait(60)
            np.save(path, np.ones((45, 3), np.float32))
        assert torch.equal(second.result().x, torch.ones(45, 3))
