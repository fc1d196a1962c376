"""Features on disk: found again, missed when anything changed, whole or not there, and the same by two processes."""

import os
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmairl.data.folders import ImageFolder
from mmairl.errors import UserError
from mmairl.evaluation import store
from mmairl.evaluation.features import Extraction, extract
from mmairl.evaluation.store import digest, stored

HOW = Extraction((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), batch_size=4)
VIEW = [[dict(type='Resize', size=16), dict(type='CenterCrop', size=16)]]


@pytest.fixture
def folder(tmp_path):
    for label in 'ab':
        (tmp_path / 'images' / label).mkdir(parents=True)
        for i in range(5):
            pixels = np.random.default_rng(i).integers(0, 255, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / 'images' / label / f'{i}.png')
    return tmp_path / 'images'


def described(folder, view=VIEW) -> dict:
    return dict(type='ImageFolder', root=str(folder), views=view)


def dataset(folder, view=VIEW) -> ImageFolder:
    return ImageFolder(folder, views=view)


def backbone(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()


def test_what_is_stored_is_what_is_extracted_and_is_not_extracted_again(folder, tmp_path, monkeypatch):
    wanted = extract(backbone(), dataset(folder), HOW)
    found = stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert torch.equal(found.x, wanted.x) and torch.equal(found.y, wanted.y)
    monkeypatch.setattr(store, '_fill', lambda *_: pytest.fail('extracted again'))
    again = stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert torch.equal(again.x, wanted.x)


def test_changed_weights_transform_statistics_or_data_miss(folder):
    base = digest(backbone(), dataset(folder), described(folder), HOW)
    assert digest(backbone(), dataset(folder), described(folder), HOW) == base
    moved = backbone()
    moved[1].running_mean += 1e-3
    other = [[dict(type='Resize', size=18), dict(type='CenterCrop', size=16)]]
    assert digest(backbone(1), dataset(folder), described(folder), HOW) != base
    assert digest(moved, dataset(folder), described(folder), HOW) != base
    assert digest(None, dataset(folder), described(folder), HOW) != base
    assert digest(backbone(), dataset(folder, other), described(folder, other), HOW) != base
    how = Extraction((0.4, 0.5, 0.5), HOW.std)
    assert digest(backbone(), dataset(folder), described(folder), how) != base
    time.sleep(0.01)
    (folder / 'a' / '3.png').write_bytes((folder / 'b' / '4.png').read_bytes())
    assert digest(backbone(), dataset(folder), described(folder), HOW) != base


def test_relabelled_and_missing_images_miss(folder):
    base = digest(backbone(), dataset(folder), described(folder), HOW)
    os.rename(folder / 'a' / '3.png', folder / 'b' / '3b.png')
    assert digest(backbone(), dataset(folder), described(folder), HOW) != base


def test_an_interrupted_extraction_leaves_nothing_and_the_next_one_works(folder, tmp_path, monkeypatch):
    original = Extraction.batches

    def break_off(self, *args, **kwargs):
        yield next(original(self, *args, **kwargs))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Extraction, 'batches', break_off)
        with pytest.raises(KeyboardInterrupt):
            stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert list((tmp_path / 'f').iterdir()) == []
    # what a killed process leaves is not taken for an entry, and is cleared away
    name = digest(backbone(), dataset(folder), described(folder), HOW)
    (tmp_path / 'f' / f'.{name}.1.part').mkdir()
    stored(tmp_path / 'f', backbone(), dataset(folder), described(folder), HOW)
    assert [path.name for path in (tmp_path / 'f').iterdir()] == [name]


def test_nan_features_are_refused_with_the_images_index_and_not_stored(folder, tmp_path):
    class Breaks(nn.Module):
        def forward(self, images):
            out = images.mean(dim=(2, 3))
            out[-1] = torch.nan
            return out

    with pytest.raises(UserError, match='NaN or infinite features, image 3 first'):
        stored(tmp_path / 'f', Breaks(), dataset(folder), described(folder), HOW)
    assert list((tmp_path / 'f').iterdir()) == []
