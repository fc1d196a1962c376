"""Shards behind a scheme (s3://, gs://, hf://, https://), read through `fsspec`, with an optional cache on the node's disk.

Credentials stay where the storage's own package looks for them. A config with credentials is refused, since logs and
checkpoints keep it.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock

from mmairl.data.images import retried
from mmairl.errors import UserError, chain, printable
from mmairl.files import FULL, replacing

Answer = TypeVar('Answer')
Stamp = tuple[int, int | str]  # size, and time of change or the storage's name of a version
# Without FileExpired, by which s3fs says that an object has changed.
REFUSED = re.compile(
    r'(?<!File)expired|credential|forbidden|denied|unauthori[sz]ed|InvalidAccessKey|Signature', re.IGNORECASE
)
LEFT_OVER = 3600  # seconds without a write after which a temporary file is of a killed process


def is_far(shard: str) -> bool:
    return '://' in shard


def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, which each process has one of, and the path in it. Old listings of the path are forgotten."""
    if re.search(r'://[^/]*@|[?&](X-Amz-|sig=|token=)', url):
        raise UserError(
            f'the URL of {printable(os.path.basename(url.split("?")[0]))} holds credentials, which a config would keep in '
            'logs and checkpoints; put them into the environment'
        )
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(f'{printable(url)} needs a package of fsspec ({error}); install it') from error
    system.invalidate_cache(path)
    return system, path


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Faults that the user can mend become a sentence, all others an OSError, which is tried again.

    The text of the original error is left out, since it may hold credentials.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # of this node's disk
        said = ' '.join(f'{type(link).__name__} {link}' for link in chain(error))
        name = printable(url)
        if isinstance(error, PermissionError) or REFUSED.search(said):
            raise UserError(
                f'the storage does not let this user read {name}; renew the credentials, then go on with --resume'
            ) from None
        if isinstance(error, FileNotFoundError):
            raise UserError(f'the shard {name} is not there; bring it back, or correct the pattern') from None
        raise OSError(errno.ETIMEDOUT if 'Timeout' in said else errno.EIO, type(error).__name__) from None


def asked(url: str, question: Callable[[Any, str], Answer]) -> Answer:
    """What a storage answers about a URL, asked again while it fails."""

    def once() -> Answer:
        with explained(url):
            return question(*filesystem(url))

    return retried(once, url)


def listed(place: str, suffixes: tuple[str, ...]) -> list[str]:
    """The shards of a folder or pattern."""

    def question(system: Any, path: str) -> list[str]:
        found = system.glob(path) if '*' in path else system.ls(path, detail=False)
        return sorted(system.unstrip_protocol(one) for one in found if one.endswith(suffixes))

    return asked(place, question)


def stamp_of(shard: str) -> Stamp:
    if is_far(shard):
        return version(asked(shard, lambda system, path: system.info(path)))
    status = os.stat(shard)
    return status.st_size, status.st_mtime_ns


def version(info: dict) -> Stamp:
    versions = (info.get(name) for name in ('ETag', 'etag', 'LastModified', 'mtime'))
    return info['size'], str(next(filter(None, versions), ''))


def refuse_other(shard: str, found: Stamp, stamp: Stamp) -> None:
    if found != stamp:
        raise UserError(
            f'the shard {printable(shard)} has changed since its images were looked for; start again with --resume, if they '
            'are still the same images in the same order'
        )


def opened(url: str, stamp: Stamp) -> BinaryIO:
    """The open shard, which reads only the bytes that it is asked for."""
    with explained(url):
        system, path = filesystem(url)
        file = system.open(path, 'rb', cache_type='none')
        refuse_other(url, version(file.details), stamp)
        return file


def read(file: BinaryIO, url: str, start: int, size: int) -> bytes:
    with explained(url):
        file.seek(start)
        data = file.read(size)
        if len(data) != size:
            raise OSError('cut short')
        return data


@contextmanager
def on_disk(shard: str, stamp: Stamp, cache: 'NodeCache | None') -> Iterator[Path]:
    """The whole shard as a file; a far one for as long as the block lasts or, with a cache, for longer."""
    if not is_far(shard):
        yield Path(shard)
    elif cache:
        yield cache.local(shard, stamp)
    else:
        with TemporaryDirectory() as folder:
            copy(shard, stamp, file := Path(folder) / os.path.basename(shard))
            yield file


def copy(url: str, stamp: Stamp, target: Path) -> None:
    """The shard as a file, whole or not at all."""

    def question(system: Any, path: str) -> None:
        with system.open(path, 'rb', cache_type='none', block_size=2**24) as source, target.open('r+b') as file:
            shutil.copyfileobj(source, file, 2**24)
            if file.tell() != stamp[0]:
                raise OSError('cut short')
        refuse_other(url, stamp_of(url), stamp)

    target.touch()
    asked(url, question)


class NodeCache:
    """Whole shards on a disk of the node, for all its processes: at most `size` bytes; the least recently used go first."""

    def __init__(self, folder: str | Path, size: int) -> None:
        # A folder of our own, so that no file of the user is counted or removed.
        self.folder, self.size = Path(folder) / 'mmairl_shards', size

    def local(self, url: str, stamp: Stamp) -> Path:
        """The shard's file, copied first where it is not there."""
        name = hashlib.sha256(f'{url} {stamp}'.encode()).hexdigest()[:32] + os.path.splitext(url)[1]
        file = self.folder / name
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f'.{name}.lock'):
                if not file.is_file():
                    with replacing(file) as beside:
                        self.make_room(beside, stamp[0])
                        copy(url, stamp, beside)
        os.utime(file)
        return file

    def make_room(self, file: Path, size: int) -> None:
        """Remove the oldest shards, and reserve the room for this one. A process that reads an old one has it open."""
        if size > self.size:
            raise UserError(
                f'the cache {self.folder} may have {self.size} bytes and a shard has {size}; set a larger cache_size'
            )
        with FileLock(self.folder / '.room'):
            held = []
            for one in self.folder.iterdir():
                with suppress(FileNotFoundError):  # another process has just renamed it
                    held.append((one.stat(), one))
            total = size + sum(status.st_size for status, _ in held)
            for status, one in sorted(held, key=lambda pair: pair[0].st_mtime):
                left_over = one.suffix == '.tmp' and status.st_mtime < time.time() - LEFT_OVER
                if total > self.size and (left_over or not one.name.startswith('.')):
                    one.unlink()
                    total -= status.st_size
            with file.open('wb') as beside:
                beside.truncate(size)
