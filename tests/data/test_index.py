"""The kept list of a folder's images: the same as a walk, and never older than the folders."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from mmairl.data import index
from mmairl.data.folders import EXTENSIONS, image_files
from mmairl.data.index import indexed
from mmairl.errors import UserError


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A tree whose folders changed long enough ago, and a cache of its own that keeps even a few files."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(index, 'KEPT_FROM', 1)
    monkeypatch.setattr(index, 'SETTLED', 0)
    names = ['b/2.jpg', 'b/10.JPG', 'a/deep/er/x.png', 'a/1.jpeg', 'a-b/1.jpg', 'top.jpg', '.hidden/1.jpg', 'a/.1.jpg']
    for name in [*names, 'a/notes.txt', 'é/ü ☃.webp']:
        path = tmp_path / 'images' / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / 'images' / 'empty').mkdir()
    return tmp_path / 'images'


def listed(root: Path) -> list[str]:
    return indexed(root, EXTENSIONS)


def refuse(*_: object) -> None:
    raise AssertionError('the folders were listed anew')


def test_it_lists_what_a_walk_finds_in_the_same_order_first_and_again(root, monkeypatch):
    expected = list(image_files(root))
    assert listed(root) == expected and len(expected) == 7
    monkeypatch.setattr(index, 'scan', refuse)
    assert listed(root) == expected


@pytest.mark.parametrize('at', ['b/new.jpg', 'empty/new.jpg', 'a/deep/er/new.jpg', 'new/new.jpg', 'new.jpg'])
def test_a_new_file_is_noticed_wherever_it_is(root, at):
    listed(root)
    (root / at).parent.mkdir(exist_ok=True)
    (root / at).touch()
    assert at in listed(root) and listed(root) == list(image_files(root))


def test_a_file_or_folder_that_is_gone_or_renamed_is_noticed(root):
    listed(root)
    (root / 'b/2.jpg').unlink()
    assert 'b/2.jpg' not in listed(root)
    (root / 'a/deep').rename(root / 'a/deeper')
    assert listed(root) == list(image_files(root))
    shutil.rmtree(root / 'b')
    assert listed(root) == list(image_files(root))


def test_a_time_stamp_that_was_set_back_deceives_nobody(root):
    listed(root)
    before = (root / 'b').stat()
    time.sleep(0.02)  # the clock of the file system ticks in between
    (root / 'b/new.jpg').touch()
    os.utime(root / 'b', ns=(before.st_atime_ns, before.st_mtime_ns))
    assert 'b/new.jpg' in listed(root)


def test_folders_that_changed_just_now_are_not_kept(root, monkeypatch):
    """A second change within the same tick of the clock would leave the stamp as it is."""
    monkeypatch.setattr(index, 'SETTLED', 10**12)
    listed(root)
    assert not list(index.cache_folder().glob('*'))


def test_few_files_are_not_kept(root, monkeypatch):
    monkeypatch.setattr(index, 'KEPT_FROM', 8)
    listed(root)
    assert not list(index.cache_folder().glob('*'))


@pytest.mark.parametrize('content', [b'', b'no zip file', None])
def test_a_broken_index_is_made_anew(root, content):
    expected = listed(root)
    (path,) = index.cache_folder().glob('*.npz')
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    assert listed(root) == expected
    assert indexed_again(root) == expected


def indexed_again(root: Path) -> list[str] | None:
    (path,) = index.cache_folder().glob('*.npz')
    return index.kept(path, root)


def test_a_pickle_in_the_cache_is_not_opened(root, tmp_path):
    expected = listed(root)
    (path,) = index.cache_folder().glob('*.npz')
    with np.load(path) as sound:
        content = dict(sound)
    content['folders'] = np.array([Burglar(tmp_path / 'opened')], object)
    np.savez(path, **content, allow_pickle=True)
    assert listed(root) == expected
    assert not (tmp_path / 'opened').exists()


class Burglar:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_cache_that_cannot_be_written_costs_only_time(root, monkeypatch, tmp_path):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    assert listed(root) == list(image_files(root))


def test_two_folders_and_two_kinds_of_files_have_lists_of_their_own(root):
    assert listed(root) != listed(root / 'a')
    assert indexed(root, ('.txt',)) == ['a/notes.txt']
    assert listed(root) == list(image_files(root))


def test_a_folder_behind_a_link_is_followed_and_a_ring_of_links_refused(root, tmp_path):
    (tmp_path / 'elsewhere').mkdir()
    (tmp_path / 'elsewhere/1.jpg').touch()
    (root / 'link').symlink_to(tmp_path / 'elsewhere')
    assert 'link/1.jpg' in listed(root)
    (tmp_path / 'elsewhere/2.jpg').touch()
    assert 'link/2.jpg' in listed(root)
    (root / 'link/ring').symlink_to(root / 'link')
    with pytest.raises(UserError, match='cannot be listed'):
        listed(root)
