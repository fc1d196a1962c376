"""Reading from disks and storages: what is tried again and for how long, and whether a failure is the file's own fault."""

import errno
import os
import queue
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # TimeoutError itself from Python 3.11 on
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from mmairl.data.decode import BYTES_PER_PIXEL, MAX_PIXELS, Reason, UnreadableImage
from mmairl.errors import UserError, printable
from mmairl.io import FULL

Answer = TypeVar('Answer')
FIRST_PAUSE = 0.1  # seconds, twice as long after each try
PATIENCE = 3.2  # seconds for a file system: six tries, about as long as a fail-over takes
# Every other error of the system (ESTALE, EIO, ETIMEDOUT, EREMOTEIO, ENETDOWN, EMFILE, ...) is not the file's fault.
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

    All at once: a decoder that reads a mapped file dies by SIGBUS if its file system goes away.
    """

    def read() -> bytes:
        try:
            # Without O_NONBLOCK, to open a named pipe waits for its writer.
            with open(
                path, 'rb', opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
            ) as file:
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
    """A vanished file is the file's fault only while the root is there and holds something: a lost mount is an empty folder."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        if any(entries):
            return
    raise UserError(
        f'the image folder {root} is empty or gone in the middle of the run; mount it again, then go on with --resume'
    )


def retried(
    read: Callable[[], Answer],
    name: Path | str,
    patience: float = PATIENCE,
    limit: float | None = None,
) -> Answer:
    """Return what `read` returns, tried again after growing pauses while it fails by an OSError, for `patience` seconds.

    With a `limit`, one try may take so many seconds, whatever time-outs and retries the library below has.
    """
    began, pause, tries = time.monotonic(), FIRST_PAUSE, 0
    while True:
        left = began + patience - time.monotonic()
        try:
            return read() if limit is None else answered(read, min(limit, left))
        except OSError as error:
            if error.errno in FULL:  # where it is copied to
                raise
            tries, lasted = tries + 1, time.monotonic() - began
            if lasted + pause > patience:
                told = f'at {printable(name)}) after {tries} tries over {lasted:.1f} s; check the'
                if limit is None:
                    told = f'the file system does not answer ({errno.errorcode.get(error.errno, error)} {told} mount'
                else:
                    told = f'the storage does not answer ({error.strerror} {told} network'
                raise UserError(
                    f'{told} (or move the file away if only it fails), then go on with --resume'
                ) from error
        time.sleep(pause)
        pause *= 2


def answered(read: Callable[[], Answer], seconds: float) -> Answer:
    """Return what `read` returns in a helping thread, which is left alone when it takes longer: nothing ends a hanging read."""
    helper = getattr(OWN, 'helper', None)
    if helper is None or not helper.is_alive():  # after a fork, a thread of the parent is not
        helper = OWN.helper = Helper()
    future: Future = Future()
    helper.tasks.put((read, future))
    try:
        return future.result(seconds)
    except NoAnswer:
        if not future.done():
            OWN.helper = None
        raise OSError(errno.ETIMEDOUT, f'no whole answer within {seconds:.0f} s') from None


class Helper(threading.Thread):
    """A thread that reads for another one. It stays, since a storage's package has connections for each thread."""

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


OWN = threading.local()
