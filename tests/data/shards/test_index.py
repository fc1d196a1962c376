"""The index of shards: interrupted indexing, changed shards, memory use, and the shards that a config names."""

import json
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from data.archives import png, tar
from harness.errors import raises_code

from mmairl.data.mixture import Mixture
from mmairl.data.sampler import ResumableSampler
from mmairl.data.shards import dataset, index, shard_paths
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.shard_paths import expand_braces, shards_at
from mmairl.data.training_images import TrainingImages

pytestmark = pytest.mark.usefixtures('own_cache')
IMAGE = png(np.full((8, 8, 3), 7, 'uint8'))


def sample(key: str, label: int | None = None) -> dict[str, bytes]:
    return {f'{key}.png': IMAGE} | ({} if label is None else {f'{key}.cls': b'%d' % label})


def test_interrupted_index_resumes(tmp_path, monkeypatch):
    for number in range(4):
        tar(tmp_path / f'{number}.tar', sample(str(number), number % 3))
    indexed = []

    def read(file: Path, name: str):
        indexed.append(file.name)
        if len(indexed) == 3:
            raise KeyboardInterrupt
        return read_tar(file, name)

    read_tar = index.READERS['.tar']
    monkeypatch.setitem(index.READERS, '.tar', read)
    with pytest.raises(KeyboardInterrupt):
        Shards(tmp_path)
    before = torch.get_rng_state()
    assert Shards(tmp_path).labels.tolist() == [0, 1, 2, 0]
    assert torch.equal(torch.get_rng_state(), before), 'indexing changes the random state of a run'
    assert indexed == ['0.tar', '1.tar', '2.tar', '2.tar', '3.tar']
    by_pattern = Shards(f'{tmp_path}/{{0..3}}.tar')
    assert by_pattern.contents.folder == Shards(tmp_path).contents.folder
    assert len(indexed) == 5


def test_changed_shard_is_indexed_again(tmp_path):
    path = tar(tmp_path / 'a.tar', sample('a', 0))
    Shards(path)
    status = os.stat(tar(path, sample('new', 4)))
    assert Shards(path).labels.tolist() == [4]
    tar(path, sample('new', 3))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert os.stat(path).st_size == status.st_size
    assert Shards(path).labels.tolist() == [3], 'a changed shard of the same size and time is not indexed again'


@pytest.mark.slow
def test_hundred_million_rows_cost_little_memory(tmp_path, monkeypatch):
    count = 10**8
    names = [f'{number:05}.tar' for number in range(10_000)]
    for name, kind, shape in (('rows', np.int64, (4, count)), ('names', np.uint8, (1,))):
        # The files are sparse, so the rows take no space on disk.
        np.lib.format.open_memmap(tmp_path / f'{name}.npy', 'w+', kind, shape)
    about = dict(classes=['x'], about={}, stamps=[[1, 1]] * len(names))
    about |= dict.fromkeys(['counts', 'units'], [count // len(names)] * len(names))
    (tmp_path / 'about.json').write_text(json.dumps(about))
    monkeypatch.setattr(dataset, 'index_of', lambda *_: index.Index(tmp_path, names))
    monkeypatch.setattr(dataset, 'shards_at', lambda _: names)
    before = private_memory()
    data = Shards('any')
    for images in (data, Mixture(dict(a=data))):
        sampler = ResumableSampler(TrainingImages(images, workers=False), seed=0)
        indices = list(islice(sampler, 4096))
        assert len({data.contents.place(image)[0] for image, _ in indices}) > 3000
        assert sum(int(images.label(image)) for image, _ in indices) == 0
    assert private_memory() - before < 200e6


def private_memory() -> int:
    """Return the memory that this process uses, excluding mapped files, since the system can reclaim their pages."""
    lines = Path('/proc/self/status').read_text().splitlines()
    values = dict(line.split(':') for line in lines)
    return sum(1024 * int(values[name].split()[0]) for name in ('RssAnon', 'RssShmem'))


def test_braces_expand_to_numbers():
    assert list(expand_braces('a{09..10}-{0..1}')) == ['a09-0', 'a09-1', 'a10-0', 'a10-1']
    assert list(expand_braces('file:///a{1}/{}.tar')) == ['/a{1}/{}.tar']


def test_shards_are_named_by_folder_pattern_or_list(tmp_path):
    paths = [str(tar(tmp_path / 'in' / f'{number}.tar', sample('a'))) for number in range(3)]
    (tmp_path / 'list.txt').write_text('in/0.tar\nin/{1..2}.tar\n')
    patterns = [f'{tmp_path}/in/*.tar', f'{tmp_path}/in/{{0..2}}.tar']
    for root in (tmp_path / 'in', *patterns, paths, tmp_path / 'list.txt'):
        assert shards_at(root) == paths


def test_existing_name_is_not_a_pattern(tmp_path):
    path = tar(tmp_path / 'in{1..2}[3]/x.tar', sample('x'))
    for place in ('', '/x.tar'):
        assert shards_at(f'file://{path.parent}{place}') == [str(path)]


@pytest.fixture
def places(tmp_path):
    tar(tmp_path / 'a.tar', sample('k', 1))
    tar(tmp_path / 'unlike.tar', sample('x'))
    (tmp_path / 'list.txt').write_text('list.txt\n')
    os.mkfifo(tmp_path / 'pipe.tar')
    (tmp_path / 'saved/train').mkdir(parents=True)
    for number in (0, 3):
        tar(tmp_path / f'few/x-{number:05}-of-00004.tar', sample('a'))
    return tmp_path


@pytest.mark.parametrize(
    ('code', 'match', 'names'),
    [
        ('unreadable-shard', 'gone.tar', ['a.tar', 'gone.tar']),
        ('no-file', 'gone.txt', ['gone.txt']),
        ('many-shards', 'x.0..99999999', ['x{0..99999999}.tar']),
        ('not-a-regular-file', 'pipe.tar', ['pipe.tar']),
        ('no-shards', 'list.txt', ['list.txt']),
        ('bad-shard-list', '', ['a.tar', 'a.tar']),
        ('unlike-shards', 'unlike.tar', ['a.tar', 'unlike.tar']),
        ('no-shards', 'nothing.zip', ['nothing.zip']),
        ('no-shards', 'the folders train', ['saved']),
        ('missing-shards', 'x-.*-of-00004: 2 of the shards', ['few']),
    ],
)
def test_wrong_shards_are_an_error(code, match, names, places):
    with raises_code(code, match):
        Shards([str(places / name) for name in names])


def test_number_of_shards_in_patterns_is_limited(monkeypatch):
    monkeypatch.setattr(shard_paths, 'MAX_SHARDS', 1000)
    with raises_code('many-shards'):
        shards_at('/nowhere/{0..999}{0..999}{0..999}.tar')
