"""Files that are there whole or not at all: write beside, flush to disk, rename. What goes wrong is one sentence."""

import errno
import glob
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from mmairl.errors import UserError, chain

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: str | Path, source: str | Path | None = None) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds and is removed when it fails.

    All writing of results goes through here. A folder, a device, the file `source` that the result is made from, a
    missing permission and a full disk are each a UserError; `path` is then as it was before.
    """
    path = Path(path)
    beside = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    with explained_disk_errors(path):
        if path.exists() and not path.is_file():
            kind = 'folder' if path.is_dir() else 'device or pipe'
            raise UserError(f'{path} is a {kind}, not a file; give the name of a file to write')
        if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
            raise UserError(f'{path} is the file to read from; give the output another name')
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        try:
            yield beside
            with beside.open('rb+') as file:
                os.fsync(file.fileno())
            os.replace(beside, path)
            folder = os.open(path.parent, os.O_RDONLY)  # a rename is on the disk only when its folder is
            with suppress(OSError):  # not every file system lets one flush a folder
                os.fsync(folder)
            os.close(folder)
        finally:
            beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all, and return where it is; for every text that a command leaves behind."""
    with replacing(path) as beside:
        beside.write_text(text, encoding='utf-8')
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write a JSON file, whole or not at all, and return where it is; for every JSON file that a command leaves behind."""
    return write_text(path, json.dumps(content, indent=1) + '\n')


def write_checkpoint(content: dict, path: str | Path, source: str | Path | None = None) -> None:
    """Save what torch can save, whole or not at all; `source` is the file that it was made from and must not replace."""
    with replacing(path, source) as beside, beside.open('wb') as file:  # given a path, torch would hide what went wrong
        torch.save(content, file)


def read_json(path: str | Path) -> Any:
    """The value in a JSON file; a file that is missing, cut off or something else is a UserError."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f'there is no file {path}; check the path')
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise UserError(f'{path} is not a whole JSON file: {error}; make it again') from error
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}; check its permissions') from error


def _remove_leftovers(path: Path) -> None:
    """Temporary files of this name whose process was killed."""
    for left in path.parent.glob(f'.{glob.escape(path.name)}.*.tmp'):
        process = left.name.split('.')[-2]
        if process.isdigit() and not _is_running(int(process)):
            left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # of another user
    return True


@contextmanager
def explained_disk_errors(path: str | Path) -> Iterator[None]:
    """Turn a full disk, a missing permission or an impossible name at `path` into one sentence; other errors pass."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # torch's writer raises a RuntimeError of its own from the system's error
        failed = next((link for link in chain(error) if isinstance(link, OSError)), None)
        if failed is None:
            raise
        if failed.errno in FULL:
            raise UserError(
                f'the disk is full: {path} could not be written; what was there before is whole; free some space and '
                'run the same command again, a training run with --resume'
            ) from error
        names = [Path(name) for name in (failed.filename, failed.filename2) if isinstance(name, str)]
        if not any(name in (Path(path), *Path(path).parents) or name.parent == Path(path).parent for name in names):
            raise
        raise UserError(
            f'{path} could not be written: {failed.strerror}; check the folder and its permissions'
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
