"""Shards behind a scheme (s3://, gs://, hf://, https://), read through `fsspec`: how long is waited, and what a refusal means.

Credentials stay where the storage's own package looks for them. A config with credentials is refused, since logs and
checkpoints keep it.
"""

import errno
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mmairl.data.reading import retried
from mmairl.errors import UserError, chain, holds_secret, printable
from mmairl.files import FULL

Answer = TypeVar('Answer')
Stamp = tuple[int, int | str]  # size, and time of change or the storage's name of a version
OPEN = 64  # shards that a process keeps open
LIMIT = 30  # seconds for an answer, whatever time-outs and retries the storage's package has
PATIENCE = 120  # seconds for all tries
BLOCK = 2**23  # bytes of a shard that are copied by one request
VERSIONS = ('ETag', 'etag', 'LastModified', 'Last-Modified', 'mtime', 'blob_id')
# What a refusal means, by words of the error or its HTTP status. s3fs says by FileExpired that an object has changed.
REFUSALS = (
    ('', (404, 410), 'the shard {} is not there; bring it back, or correct the pattern'),
    (r'(?<!File)expired', (), 'the credentials for {} have expired; renew them, then go on with --resume'),
    (
        'credential|forbidden|denied|unauthori[sz]ed|InvalidAccessKey|Signature',
        (401, 403),
        'the storage does not let this user read {}; correct the credentials, then go on with --resume',
    ),
    (
        'range requests|Cannot seek',
        (416,),
        'the server of {} sends whole files only; download the shards, or serve them by one that knows HTTP ranges',
    ),
    (
        '',
        (301, 307, 400),
        'the storage refuses {} and does not say why: most often the credentials have expired, or its region or endpoint is '
        'another; correct that, then go on with --resume',
    ),
)
# Errors of the storage's package or of ours, and not of a storage that fails.
BUGS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, TypeError, ValueError)


def is_far(shard: str) -> bool:
    return '://' in shard


def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL, which each thread has one of, and the path in it. Old listings of the path are forgotten."""
    if holds_secret(url):
        raise UserError(f'{url} holds a secret, which logs and checkpoints would keep; put it into the environment')
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UserError(f'{printable(url)} needs a package of fsspec ({error}); install it') from error
    system.invalidate_cache(path)
    return system, path


@contextmanager
def explained(url: str) -> Iterator[None]:
    """A refusal becomes a sentence, and what may pass an OSError, which is tried again; a bug stays as it is.

    The text of the original error is left out, since it may hold credentials.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # of this node's disk
        links = list(chain(error))
        said = ' '.join(f'{type(link).__name__} {link}' for link in links).replace(url.partition('://')[2], '')
        # The first error knows best: fsspec calls any failure over HTTP a missing file.
        status = next(filter(None, map(status_of, reversed(links))), 0)
        for words, statuses, meaning in REFUSALS:
            if status in statuses or (words and re.search(words, said, re.IGNORECASE)):
                raise UserError(meaning.format(printable(url))) from None
        if isinstance(error, BUGS):
            raise
        raise OSError(errno.EIO, f'{type(links[-1]).__name__}{f" {status}" if status else ""}') from None


def status_of(error: BaseException) -> int:
    """The HTTP status in an error of aiohttp, botocore, requests or httpx, or that of Python's own kinds; else 0."""
    answer = getattr(error, 'response', None)
    if isinstance(answer, dict):
        return answer.get('ResponseMetadata', {}).get('HTTPStatusCode', 0)
    told = getattr(answer, 'status_code', None) or getattr(error, 'status', None)
    kinds = {PermissionError: 403, FileNotFoundError: 404}
    return told if isinstance(told, int) else kinds.get(type(error), 0)


def asked(url: str, question: Callable[[Any, str], Answer], limit: float = LIMIT) -> Answer:
    """Ask a storage about a URL, again while it fails."""

    def once() -> Answer:
        with explained(url):
            return question(*filesystem(url))

    return retried(once, url, PATIENCE, limit)


def listed(place: str, suffixes: tuple[str, ...]) -> list[str]:
    """The shards of a folder or pattern."""

    def question(system: Any, path: str) -> list[str]:
        names = system.glob(path) if '*' in path else system.ls(path, detail=False)
        return sorted(system.unstrip_protocol(name) for name in names if name.endswith(suffixes))

    return asked(place, question, PATIENCE)  # a thousand names an answer


def stamp_of(shard: str) -> Stamp:
    if is_far(shard):
        return version(asked(shard, lambda system, path: system.info(path)))
    status = os.stat(shard)
    if not stat.S_ISREG(status.st_mode):  # to read a pipe would wait for its writer
        raise UserError(f'the shard {printable(shard)} is no regular file; leave it out')
    return stamp_in(status)


def stamp_in(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


def version(info: dict) -> Stamp:
    versions = (info.get(name) for name in VERSIONS)
    return info['size'], str(next(filter(None, versions), ''))


def refuse_other(shard: str, now: Stamp, stamp: Stamp) -> None:
    if now != stamp:
        raise UserError(
            f'the shard {printable(shard)} has changed since its images were looked for; start again with --resume, if they '
            'are still the same images in the same order'
        )


def part(url: str, stamp: Stamp, start: int, size: int) -> bytes:
    """Some bytes of a shard."""

    def once() -> bytes:
        with explained(url):
            try:
                file = opened(os.getpid(), threading.get_ident(), url, stamp)
                file.seek(start)
                data = file.read(size)
                if len(data) != size:
                    raise OSError(errno.EIO, 'cut short')
                return data
            except Exception:
                opened.cache_clear()  # it is opened again, and asked for its version
                raise

    return retried(once, url, PATIENCE, LIMIT)


@lru_cache(OPEN)
def opened(process: int, thread: int, url: str, stamp: Stamp) -> BinaryIO:
    """The open shard, which reads only the bytes that it is asked for.

    Each process has its own, since connections do not survive a fork, and each thread, since one that is given up still moves
    the place in its file.
    """
    system, path = filesystem(url)
    file = system.open(path, 'rb', cache_type='none')
    refuse_other(url, version(system.info(path)), stamp)  # over HTTP, an open file does not know its own
    return file


def copy(url: str, stamp: Stamp, target: Path) -> None:
    """Copy the shard into a file, whole or not at all."""
    with target.open('r+b') as file:
        for start in range(0, stamp[0], BLOCK):
            file.write(part(url, stamp, start, min(BLOCK, stamp[0] - start)))
    refuse_other(url, stamp_of(url), stamp)
