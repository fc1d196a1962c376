"""SUN397's nested classes and partition files."""

from pathlib import Path

import pytest
from mmairl.data.published import SUN397
from PIL import Image

from mmairl.errors import UserError

CLASSES = ['/a/abbey', '/a/apartment_building/outdoor']


@pytest.fixture
def sun(tmp_path: Path) -> Path:
    def line(i: int) -> str:
        return f'{CLASSES[i % 2]}/sun_{i:04}.jpg'

    for i in range(14):
        file = tmp_path / f'SUN397{line(i)}'
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (8, 8), (i, i, i)).save(file, quality=100)
    (tmp_path / 'SUN397' / 'ClassName.txt').write_text(''.join(f'{name}\n' for name in CLASSES))
    (tmp_path / 'splits').mkdir()
    (tmp_path / 'splits' / 'Training_01.txt').write_text(''.join(f'{line(i)}\n' for i in range(10)))
    (tmp_path / 'splits' / 'Testing_01.txt').write_text(''.join(f'{line(i)}\n' for i in (10, 11)))
    return tmp_path


def contents(data: SUN397) -> list[tuple[int, int]]:
    return [(int(data.raw(i)[0, 0, 0]), int(data.labels[i])) for i in range(len(data))]


def test_the_first_partition_is_the_split(sun):
    train, val, both, test = (contents(SUN397(sun, split)) for split in ('train', 'val', 'train+val', 'test'))
    assert both == [(i, i % 2) for i in range(10)] and len(val) == 2 and sorted(train + val) == both
    assert test == [(10, 0), (11, 1)], 'images in neither list are in no split'
    assert SUN397(sun).classes == ['abbey', 'apartment_building/outdoor'] and SUN397.metric == 'top-1'


def test_without_the_partition_it_says_where_that_comes_from(sun):
    (sun / 'splits' / 'Testing_01.txt').unlink()
    assert len(SUN397(sun, 'train')) == 8
    with pytest.raises(UserError, match=r'SUN397 .*Testing_01\.txt is missing: it wants .*splits/\{Tr.* Partitions'):
        SUN397(sun, 'test')
