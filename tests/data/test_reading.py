"""Whose fault it is that a file cannot be read: its own, and it is left out, or the file system's, and it is asked again."""

import builtins
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from mmairl.data.images import Reason, UnreadableImage, read_file
from test_folders import picture

from mmairl.data.folders import UnlabelledFolder
from mmairl.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / 'root').mkdir()
    (tmp_path / 'root' / 'a.jpg').write_bytes(b'bytes')
    return tmp_path / 'root' / 'a.jpg'


@pytest.fixture
def failing_disk(monkeypatch) -> Callable[..., list[Path]]:
    """Make `open` fail `times` times with the code; the list grows by each path that it was asked for."""

    def install(code: int, times: int) -> list[Path]:
        asked = []

        def fail(path: Path, *args: object, **options: object) -> object:
            asked.append(path)
            if len(asked) <= times:
                raise OSError(code, os.strerror(code), str(path))
            return builtins.open(path, *args, **options)

        monkeypatch.setattr('mmairl.data.images.open', fail, raising=False)
        return asked

    return install


def reason(path: Path, root: Path, max_bytes: int = 100) -> Reason:
    with pytest.raises(UnreadableImage) as caught:
        read_file(path, root, max_bytes, sleep=pytest.fail)
    return caught.value.reason


TRANSIENT = ['ESTALE', 'EIO', 'ETIMEDOUT', 'EAGAIN', 'ENETDOWN', 'EREMOTEIO', 'ENOTCONN', 'EHOSTDOWN', 'EMFILE']


@pytest.mark.parametrize('code', TRANSIENT)
def test_a_file_system_that_comes_back_is_waited_for(file, failing_disk, code):
    asked, slept = failing_disk(getattr(errno, code), 5), []
    assert read_file(file, file.parent, 100, sleep=slept.append) == b'bytes'
    assert len(asked) == 6 and slept == pytest.approx([0.1 * 2**i for i in range(5)])


@pytest.mark.parametrize('code', TRANSIENT)
def test_a_file_system_that_stays_away_is_named_and_the_image_is_not_blamed(file, failing_disk, code):
    asked, slept = failing_disk(getattr(errno, code), 99), []
    with pytest.raises(UserError) as caught:
        read_file(file, file.parent, 100, sleep=slept.append)
    assert str(caught.value) == (
        f'The file system under {file.parent} does not answer ({code} at {file}) after 6 tries over 3.1 s; check the '
        'mount (or move the file away if only it fails), then go on with --resume.'
    )
    assert len(asked) == 6 and sum(slept) == pytest.approx(3.1)


def test_a_disk_that_fails_in_the_middle_of_a_file_is_asked_again(file, monkeypatch):
    real, tries = os.fstat, []

    def flaky(descriptor: int) -> os.stat_result:
        tries.append(descriptor)
        if len(tries) == 1:
            raise OSError(errno.EIO, 'Input/output error')
        return real(descriptor)

    monkeypatch.setattr('mmairl.data.images.os.fstat', flaky)
    assert read_file(file, file.parent, 100, sleep=lambda _: None) == b'bytes' and len(tries) == 2


def test_the_data_set_waits_and_then_stops_without_counting_the_image(tmp_path, failing_disk, monkeypatch):
    slept = []
    monkeypatch.setattr(read_file, '__defaults__', (slept.append,))
    for number in range(3):
        picture(tmp_path / f'{number}.png', (number, 0, 0))
    data = UnlabelledFolder(tmp_path)
    failing_disk(errno.ESTALE, 2)
    assert int(data[0]['inputs'][0][0, 0, 0]) == 0 and slept == [0.1, 0.2]
    failing_disk(errno.ESTALE, 99)
    with pytest.raises(UserError, match='does not answer .ESTALE at .*1.png'):
        data[1]
    assert data.unreadable_files() == []


def test_each_fault_of_a_file_has_its_reason(tmp_path, file):
    root = file.parent
    assert reason(file, root, max_bytes=4) is Reason.TOO_LARGE and read_file(file, root, 5) == b'bytes'
    (root / 'empty.jpg').touch()
    assert reason(root / 'empty.jpg', root) is Reason.EMPTY
    assert reason(root / 'gone.jpg', root) is Reason.VANISHED
    assert reason(root / 'a.jpg' / 'b.jpg', root) is Reason.VANISHED
    (root / 'dangling.jpg').symlink_to(tmp_path / 'nowhere')
    assert reason(root / 'dangling.jpg', root) is Reason.VANISHED
    (root / 'loop.jpg').symlink_to(root / 'loop.jpg')
    assert reason(root / 'loop.jpg', root) is Reason.VANISHED
    (root / 'folder.jpg').mkdir()
    assert reason(root / 'folder.jpg', root) is Reason.NO_FILE


def test_a_file_without_permission_says_so(file, failing_disk):
    failing_disk(errno.EACCES, 99)  # root, who runs tests in containers, may read every file
    assert reason(file, file.parent) is Reason.FORBIDDEN


def test_a_pipe_or_a_socket_with_the_name_of_an_image_does_not_hold_the_run_up(file, monkeypatch):
    root = file.parent
    os.mkfifo(root / 'pipe.jpg')
    assert reason(root / 'pipe.jpg', root) is Reason.NO_FILE
    (root / 'device.jpg').symlink_to('/dev/zero')
    assert reason(root / 'device.jpg', root) is Reason.NO_FILE
    monkeypatch.chdir(root)  # the name of a socket has a length limit
    with socket.socket(socket.AF_UNIX) as server:
        server.bind('socket.jpg')
        assert reason(root / 'socket.jpg', root) is Reason.NO_FILE


def test_a_root_that_is_gone_or_that_lost_its_mount_is_not_a_million_vanished_files(tmp_path, file):
    root = file.parent
    file.unlink()
    with pytest.raises(UserError, match='The image folder .*root is empty in the middle of the run; mount it again'):
        read_file(file, root, 100, sleep=pytest.fail)
    root.rmdir()
    with pytest.raises(UserError, match='The image folder .*root is gone in the middle of the run; mount it again'):
        read_file(file, root, 100, sleep=pytest.fail)


def test_codes_fit_the_byte_an_image_has_and_0_is_free():
    assert sorted(Reason) == list(range(1, len(Reason) + 1)) and len(Reason) < 256
    assert all(reason.phrase.split()[0] in ('is', 'has', 'may', 'cannot') for reason in Reason)
