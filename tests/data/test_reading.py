"""Reads that fail: the faults that are recognized, and how often and how long reads are retried."""

import errno
import os
import socket
from pathlib import Path

import pytest
from harness.errors import raises_code

from mmairl.data import reading
from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.reading import read_file, retried


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / 'root').mkdir()
    (tmp_path / 'root' / 'a.jpg').write_bytes(b'bytes')
    return tmp_path / 'root' / 'a.jpg'


def fail(monkeypatch, code: int, times: int) -> None:
    """Make the next calls of `open` fail with this error."""
    faults = iter([OSError(code, os.strerror(code))] * times)

    def failing(*args: object, **options: object) -> object:
        if fault := next(faults, None):
            raise fault
        return open(*args, **options)

    monkeypatch.setattr(reading, 'open', failing, raising=False)


def fault_of(path: Path, root: Path) -> Reason:
    with pytest.raises(UnreadableImage) as raised:
        read_file(path, root, 100)
    return raised.value.reason


@pytest.mark.parametrize('code', ['ESTALE', 'EMFILE'])
def test_failing_file_system_is_retried_and_named(code, file, monkeypatch, clock):
    fail(monkeypatch, getattr(errno, code), 5)
    assert read_file(file, file.parent, 100) == b'bytes'
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    fail(monkeypatch, getattr(errno, code), 6)
    with raises_code('no-answer', rf'{file}: .*file system \({code}; 6 tries in 3.1 s'):
        read_file(file, file.parent, 100)


def test_each_fault_of_a_file_has_its_reason(tmp_path, file, clock, monkeypatch):
    root = file.parent
    (root / 'dangling.jpg').symlink_to(tmp_path / 'nowhere')
    (root / 'loop.jpg').symlink_to(root / 'loop.jpg')
    (root / 'folder.jpg').mkdir()
    with open(root / 'huge.jpg', 'wb') as huge:
        # The file is sparse, so it takes no space on disk.
        huge.truncate(2**40)
    os.mkfifo(root / 'pipe.jpg')
    (root / 'device.jpg').symlink_to('/dev/zero')
    # The path of a socket has a length limit, so the test uses a relative path.
    monkeypatch.chdir(root)
    names = {
        Reason.VANISHED: ('gone.jpg', 'a.jpg/b.jpg', 'dangling.jpg', 'loop.jpg'),
        Reason.NO_FILE: ('folder.jpg', 'pipe.jpg', 'device.jpg', 'socket.jpg'),
        Reason.TOO_LARGE: ('huge.jpg',),
    }
    with socket.socket(socket.AF_UNIX) as server:
        server.bind('socket.jpg')
        for reason, files in names.items():
            assert [fault_of(root / name, root) for name in files] == [reason] * len(files)
    # The refused access is simulated, because root may read every file.
    fail(monkeypatch, errno.EACCES, 1)
    assert fault_of(file, root) is Reason.FORBIDDEN
    assert clock.slept == []


def test_lost_root_is_not_a_fault_of_its_files(file):
    for remove in (file.unlink, file.parent.rmdir):
        remove()
        with raises_code('lost-folder', 'root'):
            read_file(file, file.parent, 100)


def test_remote_storage_is_retried_longer(clock):
    def hang() -> str:
        clock.now += 30
        raise OSError(errno.ETIMEDOUT, 'no response')

    with raises_code('no-answer', r'remote.tar: .* \(no response; 4 tries in 120.7 s\); check the connection'):
        retried(hang, 'remote.tar', patience=120)
