"""A disk that fills up ends a run in one sentence and costs nothing but the steps since the last checkpoint."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmairl.errors import UserError
from mmairl.files import replacing
from projects.faults import disk, small_run
from projects.faults.disk import FAULTS, TmpFs, full_disks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason='only root can mount a file system')


@pytest.mark.slow
def test_a_run_on_a_full_disk_says_so_and_resumes_when_there_is_room(tmp_path):
    found = full_disks(1, 0, tmp_path)
    assert {name: found[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert found['full disks'] == found['went on'] == 1


def test_torchs_error_for_a_full_disk_is_explained_and_leaves_no_file(tmp_path):
    """torch ends in a RuntimeError about a position in its archive; the system's error is its context."""
    with TmpFs(tmp_path / 'disk') as full:
        full.fill(disk.SIZE // 8)
        path = full.folder / 'a.pth'
        with pytest.raises(UserError, match='the disk is full: .*a.pth could not be written'):
            save_too_much(path)
        assert list(full.folder.iterdir()) == [full.filler]
        full.free()
        full.fill(0)
        with pytest.raises(OSError) as caught:
            (full.folder / 'more').write_bytes(b'x')
        assert caught.value.errno == errno.ENOSPC
        full.free()
        (full.folder / 'more').write_bytes(bytes(disk.SIZE // 2))


def save_too_much(path: Path) -> None:
    with replacing(path) as beside, beside.open('wb') as file:
        torch.save(dict(weight=torch.zeros(disk.SIZE // 16)), file)


def test_a_run_that_ends_in_a_traceback_is_counted_as_a_fault(tmp_path, monkeypatch):
    full = SimpleNamespace(folder=tmp_path, free=lambda: None)
    monkeypatch.setattr(disk, 'until_full', lambda *_: (1, 'Traceback (most recent call last):\nOSError: full'))
    monkeypatch.setattr(small_run, 'run', lambda *_: 1)
    found = disk.one_run(tmp_path / 'none.py', full, 0, tmp_path / 'whole')
    faults = {'ended otherwise', 'said otherwise', 'damaged checkpoints', 'could not go on'}
    assert {name for name in FAULTS if found[name]} == faults
