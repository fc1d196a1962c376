"""Caltech-101's draw, class by class."""

from pathlib import Path

import pytest
from mmairl.data.published import Caltech101
from PIL import Image

from mmairl.errors import UserError

SIZES = {'BACKGROUND_Google': 31, 'ant': 34}


@pytest.fixture
def caltech(tmp_path: Path) -> Path:
    for first, (name, size) in zip((0, 100), SIZES.items()):
        folder = tmp_path / 'caltech101' / '101_ObjectCategories' / name
        folder.mkdir(parents=True)
        for i in range(size):
            Image.new('L', (8, 8), first + i).save(folder / f'image_{i + 1:04}.jpg', quality=100)
    (tmp_path / 'caltech101' / '101_ObjectCategories' / 'BACKGROUND_Google' / 'tmp').touch()  # as in the archive
    return tmp_path


def contents(data: Caltech101) -> list[tuple[int, int]]:
    return [(int(data.raw(i)[0, 0, 0]), int(data.labels[i])) for i in range(len(data))]


def test_each_class_gives_25_and_5_images_and_the_rest(caltech):
    parts = {split: contents(Caltech101(caltech, split)) for split in ('train', 'val', 'train+val', 'test')}
    counts = {split: [sum(y == label for _, y in images) for label in (0, 1)] for split, images in parts.items()}
    assert counts == {'train': [25, 25], 'val': [5, 5], 'train+val': [30, 30], 'test': [1, 4]}
    assert sorted(parts['train'] + parts['val']) == sorted(parts['train+val'])
    assert sorted(parts['train+val'] + parts['test']) == [(i, 0) for i in range(31)] + [(100 + i, 1) for i in range(34)]
    data = Caltech101(caltech)
    assert data.classes == ['BACKGROUND_Google', 'ant'] and data.metric == 'mean per class'


def test_the_seed_decides_who_is_drawn(caltech):
    first, again, other = (contents(Caltech101(caltech, 'val', seed=seed)) for seed in (0, 0, 1))
    assert first == again != other


def test_a_class_without_a_test_image_and_a_missing_folder_are_one_sentence(caltech, tmp_path):
    for image in (31, 32, 33, 34):
        (caltech / 'caltech101' / '101_ObjectCategories' / 'ant' / f'image_{image:04}.jpg').unlink()
    with pytest.raises(UserError, match='class ant of Caltech101 has 30 images .* wants over 30'):
        Caltech101(caltech)
    with pytest.raises(UserError, match=r'Caltech101 cannot be read from .*gone, where .* is missing: it wants'):
        Caltech101(tmp_path / 'gone')
    assert not (tmp_path / 'gone').exists()
