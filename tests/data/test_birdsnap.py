"""Birdsnap's tables, and photographs that are gone."""

from pathlib import Path

import pytest
from mmairl.data.published import Birdsnap
from PIL import Image

from mmairl.errors import UserError

SPECIES = {'7': ('Acadian Flycatcher', 'Acadian_Flycatcher'), '3': ("Wilson's Snipe", 'Wilsons_Snipe')}


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    lines = [f'{id}\t{common}\tAves aves\t{folder}' for id, (common, folder) in SPECIES.items()]
    (tmp_path / 'species.txt').write_text('\n'.join(['id\tcommon\tscientific\tdir', *lines]) + '\n')
    # 20 training images, 4 of the test, one photograph of each gone
    paths = {i: (f'{SPECIES["73"[i % 2]][1]}/{i}.jpg', '73'[i % 2]) for i in range(26)}
    rows = [f'http://flickr/{i}.jpg\t{"0" * 32}\t{path}\t{id}\t1\t2\t3\t4\tnull' for i, (path, id) in paths.items()]
    header = 'url\tmd5\tpath\tspecies_id\tbb_x1\tbb_y1\tbb_x2\tbb_y2\tback_x'
    (tmp_path / 'images.txt').write_text('\n'.join([header, *rows]) + '\n')
    (tmp_path / 'test_images.txt').write_text('\n'.join(['path', *(paths[i][0] for i in range(21, 26))]) + '\n')
    for i, (path, _) in paths.items():
        if i not in (4, 22):
            file = tmp_path / 'download' / 'images' / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new('RGB', (8, 8), (i, i, i)).save(file, quality=100)
    return tmp_path


def contents(data: Birdsnap) -> list[tuple[int, int]]:
    return [(int(data.raw(i)[0, 0, 0]), int(data.labels[i])) for i in range(len(data))]


def test_photographs_that_are_gone_are_left_out_of_every_split(birds):
    assert contents(Birdsnap(birds, 'test')) == [(i, i % 2) for i in (21, 23, 24, 25)]
    train, val, both = (contents(Birdsnap(birds, split)) for split in ('train', 'val', 'train+val'))
    assert both == [(i, i % 2) for i in range(21) if i != 4]
    assert len(val) == round(20 * 4_981 / 47_386) and sorted(train + val) == both
    assert Birdsnap(birds).classes == ['Acadian Flycatcher', "Wilson's Snipe"] and Birdsnap.metric == 'top-1'


def test_without_tables_or_photographs_it_says_what_is_wanted(birds, tmp_path):
    with pytest.raises(
        UserError, match=r'Birdsnap cannot be read from .*gone, where .*species\.txt is missing: it wants'
    ):
        Birdsnap(tmp_path / 'gone')
    (birds / 'download').rename(birds / 'elsewhere')
    with pytest.raises(UserError, match="Birdsnap has no image for split 'test' in"):
        Birdsnap(birds, 'test')
