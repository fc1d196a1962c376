"""The bytes of an image file, or who is to blame that there are none: the file, or the file system below it."""

import errno
import os
import stat
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from mmairl.errors import UserError

PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds between six tries; a fail-over takes about as long


class Reason(IntEnum):
    """Why an image cannot be read, as the code that fits into one byte an image, and as a phrase."""

    phrase: str

    def __new__(cls, code: int, phrase: str) -> 'Reason':
        reason = int.__new__(cls, code)
        reason._value_, reason.phrase = code, phrase
        return reason

    BROKEN = 1, 'cannot be decoded'
    EMPTY = 2, 'is empty'
    VANISHED = 3, 'has vanished'
    TOO_LARGE = 4, 'is larger than max_pixels'
    NO_IMAGE = 5, 'is not recognised as an image'
    CUT_SHORT = 6, 'is cut short'
    FORBIDDEN = 7, 'may not be read by this user'
    NO_FILE = 8, 'is not a regular file'


class Unreadable(Exception):
    """This one file is at fault, and another can take its place."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.phrase)
        self.reason = reason


# Every other error of the system (ESTALE, EIO, ETIMEDOUT, EREMOTEIO, ENETDOWN, EMFILE, ...) says nothing of the image.
FAULTS_OF_THE_FILE = {
    errno.ENOENT: Reason.VANISHED,
    errno.ENOTDIR: Reason.VANISHED,
    errno.ELOOP: Reason.VANISHED,
    errno.EACCES: Reason.FORBIDDEN,
    errno.EPERM: Reason.FORBIDDEN,
    errno.EISDIR: Reason.NO_FILE,
    errno.ENXIO: Reason.NO_FILE,
}


def read_file(path: Path, root: Path, max_bytes: int, sleep: Callable[[float], None] = time.sleep) -> bytes:
    """The file's bytes, asked for again after growing pauses where the file system below `root` fails."""
    for pause in (*PAUSES, None):
        try:
            return read_once(path, root, max_bytes)
        except OSError as error:
            if pause is None:
                raise UserError(
                    f'The file system under {root} does not answer ({name(error)} at {path}) after {len(PAUSES) + 1} '
                    f'tries over {sum(PAUSES):.1f} s; check the mount (or move the file away if only it fails), '
                    'then go on with --resume.'
                ) from error
            sleep(pause)
    raise AssertionError('the last try returns or raises')


def read_once(path: Path, root: Path, max_bytes: int) -> bytes:
    """The file's bytes; OSError where the file system is at fault, Unreadable where the file is."""
    try:
        return slurp(path, max_bytes)
    except OSError as error:
        reason = FAULTS_OF_THE_FILE.get(error.errno)
        if reason is None:
            raise
        if reason is Reason.VANISHED:
            require_root(root)
        raise Unreadable(reason) from error


def slurp(path: Path, max_bytes: int) -> bytes:
    """All the bytes at once, so that no decoder meets the file system: a mapped file that goes away kills the process."""
    with open(path, 'rb', opener=without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(Reason.NO_FILE)
        if status.st_size > max_bytes:
            raise Unreadable(Reason.TOO_LARGE)
        data = file.read()
    if not data:
        raise Unreadable(Reason.EMPTY)
    return data


def without_waiting(path: str, flags: int) -> int:
    """Open a named pipe without waiting for its writer, who may never come."""
    return os.open(path, flags | os.O_NONBLOCK)


def require_root(root: Path) -> None:
    """A file that vanished is the file's fault only while the folder of all the images is there, with something in it.

    A mount point that lost its file system is an empty folder.
    """
    try:
        with os.scandir(root) as entries:
            if next(entries, None) is not None:
                return
        state = 'is empty'
    except (FileNotFoundError, NotADirectoryError):
        state = 'is gone'
    raise UserError(
        f'The image folder {root} {state} in the middle of the run; mount it again, then go on with --resume.'
    )


def name(error: OSError) -> str:
    """An error of the system by its short name: ESTALE."""
    return errno.errorcode.get(error.errno, str(error))
