"""A node's copies of remote shards: created once, shared between processes, and removed when least recently used."""

import errno
import shutil
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
from data.archives import PIXELS, Dated, all_pixels, numbered_shard
from harness.errors import raises_code

from mmairl.data.shards import cache, dataset
from mmairl.data.shards.dataset import Shards

CONTENTS = [numbered_shard(PIXELS[first : first + 4], first) for first in (0, 4, 8)]
URL = 'dated://train-{0..2}.tar'


@pytest.fixture(autouse=True)
def storage(own_cache, clock) -> Dated:
    files = Dated()
    for number, content in enumerate(CONTENTS):
        files.pipe(f'/train-{number}.tar', content)
    dataset.open_shard.cache_clear()
    return files


def copies_in(data: Shards) -> list[bytes]:
    return sorted(file.read_bytes() for file in data.cache.folder.glob('*.tar'))


def test_shards_are_copied_once(tmp_path, monkeypatch):
    data = Shards(URL, cache=tmp_path)
    assert np.array_equal(all_pixels(data, workers=1), PIXELS)
    assert copies_in(data) == sorted(CONTENTS)
    monkeypatch.setattr(Dated, 'cat_file', lambda *_, **__: pytest.fail('a shard was read again'))
    assert np.array_equal(all_pixels(Shards(URL, cache=tmp_path)), PIXELS)


def test_copy_stays_when_its_shard_is_replaced(tmp_path, storage):
    data = Shards(URL)
    data.cache = cache.NodeCache(tmp_path, 2**20)
    data.raw(4)
    for number in (1, 2):
        storage.pipe(f'/train-{number}.tar', numbered_shard(255 - PIXELS[:4], 4 * number))
    assert int(data.raw(5)[0, 0, 0]) == PIXELS[5, 0, 0, 0]
    with raises_code('shard-changed', 'train-2.tar'):
        data.raw(9)


def test_least_recently_used_copy_is_removed(tmp_path):
    size = len(CONTENTS[0])
    data = Shards(URL, cache=tmp_path, cache_size=int(2.5 * size))
    users_file = tmp_path / 'of_the_user.tar'
    users_file.write_bytes(bytes(3 * size))
    for index, present in [(0, {0}), (4, {0, 1}), (1, {0, 1}), (8, {0, 2}), (5, {1, 2})]:
        time.sleep(0.02)
        dataset.open_shard.cache_clear()
        assert np.array_equal(data.raw(index).permute(1, 2, 0), PIXELS[index])
        copies = copies_in(data)
        assert {CONTENTS[number] for number in present} <= set(copies)
        assert len(copies) <= 2
    assert users_file.exists()
    with raises_code('small-cache'):
        Shards(URL, cache=tmp_path / 'small', cache_size=size - 1).raw(0)


def test_readers_at_once_share_one_copy(tmp_path):
    sets = [Shards(URL, cache=tmp_path, cache_size=2**20) for _ in range(4)]
    shutil.rmtree(tmp_path / 'mmairl_shards')
    threads = [threading.Thread(target=all_pixels, args=[data]) for data in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert copies_in(sets[0]) == sorted(CONTENTS)
    assert not list(tmp_path.rglob('*.tmp'))


def test_full_disk_is_an_error_without_retries(tmp_path, monkeypatch):
    data = Shards(URL, cache=tmp_path)
    full = Mock(side_effect=OSError(errno.ENOSPC, 'No space left on device'))
    monkeypatch.setattr(cache, 'copy', full)
    shutil.rmtree(tmp_path / 'mmairl_shards')
    with raises_code('disk-full'):
        data.raw(0)
    assert full.call_count == 1
