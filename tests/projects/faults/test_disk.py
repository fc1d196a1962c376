"""A disk that fills up ends a run in one sentence and costs nothing but the steps since the last checkpoint."""

import errno
from pathlib import Path

import pytest
import torch

from mmairl.errors import UserError
from mmairl.files import full_disk_explained, replacing
from projects.faults import disk, small_run
from projects.faults.disk import FAULTS, FileLimit, TmpFs, full_disks, small_disk


@pytest.mark.parametrize('kind', ['the best there is', 'a limit'])
def test_a_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(tmp_path, monkeypatch, kind):
    if kind == 'a limit':
        monkeypatch.setattr(disk, 'small_disk', limited)
    found = full_disks(1, 0, tmp_path)
    assert {name: found[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert found['full disks'] == found['went on'] == 1


def limited(folder: Path) -> FileLimit:
    folder.mkdir()
    return FileLimit(folder)


def test_torchs_own_words_for_a_full_disk_are_understood(tmp_path):
    """torch ends in a RuntimeError about a position in its archive; the system's error stands behind it."""
    with small_disk(tmp_path / 'disk') as full:
        if not isinstance(full, TmpFs):
            pytest.skip('only root can mount a file system')
        path = full.folder / 'a.pth'
        with pytest.raises(UserError, match='the disk is full: .*a.pth could not be written') as caught:
            save_too_much(path)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert list(full.folder.iterdir()) == []


def save_too_much(path: Path) -> None:
    with full_disk_explained(path), replacing(path) as beside, beside.open('wb') as file:
        torch.save(dict(weight=torch.zeros(disk.SIZE)), file)


def test_the_disk_is_filled_to_the_byte_that_was_asked_for_and_freed(tmp_path):
    with small_disk(tmp_path / 'disk') as full:
        if not isinstance(full, TmpFs):
            pytest.skip('only root can mount a file system')
        full.fill(None, 0)
        with pytest.raises(OSError) as caught:
            (full.folder / 'more').write_bytes(b'x')
        assert caught.value.errno == errno.ENOSPC
        full.free()
        (full.folder / 'more').write_bytes(bytes(disk.SIZE // 2))
    assert not (tmp_path / 'disk' / 'more').exists()


def test_a_run_that_ends_in_a_traceback_is_counted_as_a_fault(tmp_path, monkeypatch):
    work_dir = tmp_path / 'disk' / 'run'
    work_dir.mkdir(parents=True)
    monkeypatch.setattr(disk, 'until_full', lambda *_: (1, 'Traceback (most recent call last):\nOSError: full'))
    monkeypatch.setattr(small_run, 'run', lambda *_: 1)
    found = disk.one_run(tmp_path / 'none.py', FileLimit(tmp_path / 'disk'), 0, tmp_path / 'whole')
    assert {name for name in FAULTS if found[name]} == {
        'ended otherwise',
        'said otherwise',
        'damaged checkpoints',
        'could not go on',
    }
