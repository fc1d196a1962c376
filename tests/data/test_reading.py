"""Whose fault it is when a file or a storage cannot be read, and how long is waited for it."""

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mmairl.data import reading
from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.reading import answered, read_file, retried
from mmairl.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / 'root').mkdir()
    (tmp_path / 'root' / 'a.jpg').write_bytes(b'bytes')
    return tmp_path / 'root' / 'a.jpg'


def fail(monkeypatch, code: int, times: int) -> None:
    """Make `open` fail so often."""
    faults = iter([OSError(code, os.strerror(code))] * times)

    def failing(*args: object, **options: object) -> object:
        if fault := next(faults, None):
            raise fault
        return open(*args, **options)

    monkeypatch.setattr(reading, 'open', failing, raising=False)


def fault_of(path: Path, root: Path, max_pixels: int = 100) -> Reason:
    with pytest.raises(UnreadableImage) as caught:
        read_file(path, root, max_pixels)
    return caught.value.reason


def test_a_file_system_is_waited_for_and_then_named_and_the_image_is_not_blamed(file, monkeypatch, clock):
    for code in ('ESTALE', 'EMFILE'):
        clock.slept.clear()
        fail(monkeypatch, getattr(errno, code), 5)
        assert read_file(file, file.parent, 100) == b'bytes'
        assert clock.slept == pytest.approx([0.1 * 2**i for i in range(5)])
        fail(monkeypatch, getattr(errno, code), 6)
        with pytest.raises(UserError) as caught:
            read_file(file, file.parent, 100)
        assert f'the file system does not answer ({code} at {file}) after 6 tries over 3.1 s' in str(caught.value)
        assert not isinstance(caught.value, UnreadableImage)


def test_each_fault_of_a_file_has_its_reason(tmp_path, file, clock, monkeypatch):
    root = file.parent
    (root / 'dangling.jpg').symlink_to(tmp_path / 'nowhere')
    (root / 'loop.jpg').symlink_to(root / 'loop.jpg')
    (root / 'folder.jpg').mkdir()
    with open(root / 'huge.jpg', 'wb') as huge:
        huge.truncate(2**40)  # a hole, which takes no disk
    os.mkfifo(root / 'pipe.jpg')  # which would hold up the run
    (root / 'device.jpg').symlink_to('/dev/zero')
    monkeypatch.chdir(root)  # the name of a socket has a length limit
    with socket.socket(socket.AF_UNIX) as server:
        server.bind('socket.jpg')
        for wanted, names in {
            Reason.VANISHED: ('gone.jpg', 'a.jpg/b.jpg', 'dangling.jpg', 'loop.jpg'),
            Reason.NO_FILE: ('folder.jpg', 'pipe.jpg', 'device.jpg', 'socket.jpg'),
            Reason.TOO_LARGE: ('huge.jpg',),
        }.items():
            assert [fault_of(root / name, root) for name in names] == [wanted] * len(names)
    fail(monkeypatch, errno.EACCES, 1)  # root, who runs tests in containers, may read every file
    assert fault_of(file, root) is Reason.FORBIDDEN and clock.slept == []


def test_a_root_that_is_gone_or_that_lost_its_mount_is_not_a_million_vanished_files(file):
    for remove in (file.unlink, file.parent.rmdir):
        remove()
        with pytest.raises(UserError, match='the image folder .*root is empty or gone in the middle of the run'):
            read_file(file, file.parent, 100)


def test_a_read_that_hangs_is_left_alone_and_the_next_one_is_answered():
    over = threading.Event()
    with pytest.raises(OSError, match='no whole answer within 0 s'):
        answered(over.wait, 0.05)
    assert answered(lambda: 'whole', 60) == 'whole'
    over.set()


def test_a_storage_is_asked_for_a_limited_time_and_told_with_what_has_passed(clock, monkeypatch):
    limits = []

    def hang(read: Callable[[], str], seconds: float) -> str:
        limits.append(seconds)
        clock.now += seconds
        raise OSError(errno.ETIMEDOUT, f'no whole answer within {seconds:.0f} s')

    monkeypatch.setattr(reading, 'answered', hang)
    with pytest.raises(UserError) as caught:
        retried(lambda: '', 'far.tar', patience=120, limit=30)
    assert limits == pytest.approx([30, 30, 30, 29.3]) and clock.now == pytest.approx(120)
    said = 'the storage does not answer (no whole answer within 29 s at far.tar) after 4 tries over 120.0 s; check the network'
    assert str(caught.value).startswith(said)
