"""Reads from disks and storages: which failures are retried, for how long, and which are the file's own fault."""

import errno
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import (
    TimeoutError as NoAnswer,
)  # before Python 3.11, not the built-in TimeoutError
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from mmairl.data.decode import BYTES_PER_PIXEL, MAX_PIXELS, Reason, UnreadableImage
from mmairl.errors import UserError
from mmairl.io import FULL, open_without_waiting

Answer = TypeVar('Answer')
FIRST_PAUSE = 0.1  # seconds, twice as long after each try
PATIENCE = 3.2  # seconds for a file system: six tries, about as long as a fail-over takes
# Other system errors (ESTALE, EIO, ETIMEDOUT, EREMOTEIO, ENETDOWN, EMFILE, ...) are not the file's fault.
FAULTS_OF_THE_FILE = {
    errno.ENOENT: Reason.VANISHED,
    errno.ENOTDIR: Reason.VANISHED,
    errno.ELOOP: Reason.VANISHED,
    errno.EACCES: Reason.FORBIDDEN,
    errno.EPERM: Reason.FORBIDDEN,
    errno.EISDIR: Reason.NO_FILE,
    errno.ENXIO: Reason.NO_FILE,
}


THREAD = threading.local()  # the helper of each thread


def read_file(path: Path, root: Path, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return the bytes of an image file below `root`.

    The file is not mapped: a decoder that reads a mapped file dies by SIGBUS if its file system goes away.
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
    """Raise if the root is missing or empty, as a lost mount is; otherwise a missing file is the file's own fault."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        if any(entries):
            return
    raise UserError(
        f'{root}: the image folder has become empty or was removed during the run; mount it again and continue with --resume',
        code='lost-folder',
    )


def retried(
    read: Callable[[], Answer],
    name: Path | str,
    patience: float = PATIENCE,
    limit: float | None = None,
) -> Answer:
    """Return what `read` returns. Retry it on OSError, after growing pauses.

    Args:
        read: The function to call.
        name: What it reads, for the error message.
        patience: Seconds for all tries.
        limit: Seconds for one try, regardless of time-outs and retries of the library below. Default: none.

    Raises:
        UserError: If all tries fail.
    """
    began = time.monotonic()
    pause = FIRST_PAUSE
    tries = 0
    while True:
        remaining = began + patience - time.monotonic()
        try:
            return read() if limit is None else answer_within(read, min(limit, remaining))
        except OSError as error:
            if error.errno in FULL:  # the disk of a copy
                raise
            tries += 1
            seconds = time.monotonic() - began
            if seconds + pause > patience:
                kind = 'storage' if limit else 'file system'
                cause = error.strerror if limit else errno.errorcode.get(error.errno, error)
                raise UserError(
                    f'{name}: no answer from the {kind} ({cause}; {tries} tries in {seconds:.1f} s); check the '
                    f'{"network" if limit else "mount"}, or move the file away if only it fails, then continue with --resume',
                    code='no-answer',
                ) from error
        time.sleep(pause)
        pause *= 2


def answer_within(read: Callable[[], Answer], seconds: float) -> Answer:
    """Return what `read` returns in a helper thread, which is abandoned after a time-out: a hanging read cannot be ended."""
    helper = getattr(THREAD, 'helper', None)
    if helper is None or not helper.is_alive():  # the parent's thread does not survive a fork
        helper = THREAD.helper = Helper()
    future: Future = Future()
    helper.tasks.put((read, future))
    try:
        return future.result(seconds)
    except NoAnswer:
        if not future.done():
            THREAD.helper = None
        raise OSError(errno.ETIMEDOUT, f'no complete response within {seconds:.0f} s') from None


class Helper(threading.Thread):
    """A thread that reads for another one. It is kept, because storage packages hold connections per thread."""

    def __init__(self) -> None:
        super().__init__(daemon=True)  # so that a process can end while a read hangs
        self.tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            read, future = self.tasks.get()
            try:
                future.set_result(read())
            except BaseException as error:
                future.set_exception(error)
