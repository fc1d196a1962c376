"""Reading of files from disks and remote storage.

Temporary failures of the storage are retried. If the file itself is at fault, an error is raised immediately.
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mmairl.data.decode import BYTES_PER_PIXEL, MAX_PIXELS, Reason, UnreadableImage
from mmairl.errors import UserError
from mmairl.io import FULL, open_without_waiting

Answer = TypeVar('Answer')
FIRST_PAUSE = 0.1  # seconds before the second try; the pause doubles after each further try
# No try on a file system starts later than this many seconds after the first try. This time allows six tries.
PATIENCE = 3.2
# The system errors that are the fault of the file. All other errors (ESTALE, EIO, ETIMEDOUT, EREMOTEIO, ENETDOWN, EMFILE, ...)
# count as temporary.
FAULTS_OF_THE_FILE = {
    errno.ENOENT: Reason.VANISHED,
    errno.ENOTDIR: Reason.VANISHED,
    errno.ELOOP: Reason.VANISHED,
    errno.EACCES: Reason.FORBIDDEN,
    errno.EPERM: Reason.FORBIDDEN,
    errno.EISDIR: Reason.NO_FILE,
    errno.ENXIO: Reason.NO_FILE,
}


def read_file(path: Path, root: Path, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return the bytes of an image file below `root`.

    The file is not mapped into memory, because SIGBUS would kill the process if the mapped file became unavailable.
    """

    def read() -> bytes:
        try:
            with open(path, 'rb', opener=open_without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise UnreadableImage(Reason.NO_FILE)
                if status.st_size > BYTES_PER_PIXEL * max_pixels:
                    raise UnreadableImage(Reason.TOO_LARGE)
                return file.read()
        except OSError as error:
            reason = FAULTS_OF_THE_FILE.get(error.errno)
            if reason is None:
                raise
            if reason is Reason.VANISHED:
                require_root(root)
            raise UnreadableImage(reason) from error

    return retried(read, path)


def require_root(root: Path) -> None:
    """Raise if the root folder is missing or empty, for example after a mount was lost. Otherwise, do nothing."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        if any(entries):
            return
    raise UserError(
        f'{root}: the image folder has become empty or was removed during the run; mount the folder again and continue with '
        '--resume',
        code='lost-folder',
    )


def retried(read: Callable[[], Answer], name: Path | str, patience: float | None = None) -> Answer:
    """Call `read` and return its result. If it raises OSError, call it again after a pause, which doubles each time.

    Args:
        read: The function to call.
        name: The name of what `read` reads, for the error message.
        patience: No try starts later than this many seconds after the first try. Set this if `read` reads from remote
            storage. Default: PATIENCE, which suits file systems.

    Raises:
        UserError: If all tries fail.
        OSError: If the disk to which `read` writes is full.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE
    tries = 0
    while True:
        try:
            return read()
        except OSError as error:
            if error.errno in FULL:  # `read` writes to a full disk, so another try would fail, too
                raise
            tries += 1
            seconds = time.monotonic() - began
            if seconds + pause > (patience or PATIENCE):
                kind, place = ('storage', 'connection') if patience else ('file system', 'mount')
                cause = error.strerror if patience else errno.errorcode.get(error.errno, error)
                raise UserError(
                    f'{name}: no answer from the {kind} ({cause}; {tries} tries in {seconds:.1f} s); check the {place}, or '
                    'move the file away if other files can be read, then continue with --resume',
                    code='no-answer',
                ) from error
        time.sleep(pause)
        pause *= 2
