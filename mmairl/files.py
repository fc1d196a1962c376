"""Files that are there whole or not at all: write beside, flush to disk, rename."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from mmairl.errors import UserError, chain

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that takes the place of `path` when the block succeeds and vanishes when it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        yield beside
        with beside.open('rb+') as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
        _flush_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all, and return where it is."""
    with replacing(path) as beside:
        beside.write_text(text, encoding='utf-8')
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write a JSON file, whole or not at all, and return where it is."""
    return write_text(path, json.dumps(content, indent=1) + '\n')


def _flush_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is; not every file system lets one flush a folder."""
    if not hasattr(os, 'O_DIRECTORY'):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


class AtomicBackend(LocalBackend):
    """mmengine's local file backend whose `put` never leaves a half-written checkpoint under the final name."""

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        with full_disk_explained(filepath), replacing(filepath) as beside:
            beside.write_bytes(obj)

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        with replacing(filepath) as beside:
            beside.write_text(obj, encoding=encoding)


@contextmanager
def full_disk_explained(path: str | Path) -> Iterator[None]:
    """A full disk or quota as one sentence; the file that was being written is gone, older ones are as they were."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # torch's writer ends in a RuntimeError of its own, behind which the system's stands
        if not any(isinstance(link, OSError) and link.errno in FULL for link in chain(error)):
            raise
        raise UserError(
            f'the disk is full: {path} could not be written, earlier checkpoints are whole; free some space and go on '
            'with --resume'
        ) from error


class BackgroundWriter:
    """Does one thing at a time in a thread, so that a training step need not wait for the disk.

    What goes wrong there is raised here, at the next call.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, 'checkpoint')
        self.job: Future | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Begin to write once the previous thing is written: there is never more than one copy waiting."""
        self.finish()
        self.job = self.thread.submit(write)

    def check(self) -> None:
        """Raise what went wrong, if that is known by now."""
        if self.job is not None and self.job.done():
            self.finish()

    def finish(self) -> None:
        """Wait until everything is on the disk."""
        job, self.job = self.job, None
        if job is not None:
            job.result()


# The checkpoint hook asks for it by name: default_hooks.checkpoint.backend_args.backend = 'atomic'.
register_backend('atomic', AtomicBackend, force=True)
