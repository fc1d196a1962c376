"""Shards behind a URL scheme (s3://, gs://, hf://, https://), read through `fsspec`.

Every answer is compared with the stamp that was taken when the shard was indexed, so a shard that is replaced during a run
ends the run. Temporary failures are retried; all others are one clear error. Credentials stay where the package of the
storage looks for them: a URL that may hold a secret raises an error.
"""

import errno
import os
import re
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from mmairl.data.reading import retried
from mmairl.errors import UserError, chain, refuse_secret
from mmairl.io import FULL

Answer = TypeVar('Answer')
# Size, then the time of change or the versions that the storage states.
Stamp = tuple[int | str, ...]
OPEN = 64  # shards that a process keeps open
LIMIT = 30  # seconds for an answer, regardless of the package's own time-outs and retries
PATIENCE = 120  # seconds for all tries
BLOCK = 2**23  # bytes of a shard that are copied by one request
BODY = 2**12  # bytes of an error page that are searched for its reason
VERSIONS = (
    'ETag', 'etag', 'generation', 'LastModified', 'Last-Modified', 'last_modified', 'mtime', 'modify', 'blob_id',
)  # fmt: skip
CONTENT_RANGE = re.compile(r'bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18})')
# Why a storage refuses: words in its answer, the HTTP statuses to which they apply, code and message of the error. An error
# without a status, such as one about a file of credentials, needs the words.
DENIED = (
    'far-denied',
    'this user may not read the shard; correct the credentials and continue with --resume',
)
NO_RANGES = (
    'no-http-ranges',
    'the server has no HTTP ranges; download the shards, or use a server that has them',
)
MISSING = 'far-missing', 'there is no such shard; restore it, or correct the pattern'
EXPIRED = 'far-expired', 'the credentials have expired; renew them and continue with --resume'
REFUSED = (
    'far-refused',
    'the storage refuses and gives no reason; check that the credentials have not expired, and the region and endpoint, '
    'then continue with --resume',
)
REFUSALS = (
    ('', (404, 410), MISSING),
    (r'(?<!File)expired', (400, 401, 403), EXPIRED),
    ('', (401, 403), DENIED),
    ('credential|forbidden|denied|unauthori[sz]ed|InvalidAccessKey|Signature', (400,), DENIED),
    ('range requests|Cannot seek', (), NO_RANGES),
    ('', (416,), NO_RANGES),
    ('', (301, 307, 400), REFUSED),
)
# Errors that fsspec raises instead of a status, if nothing else caused them.
STATUS_OF_KIND = {PermissionError: 403, FileNotFoundError: 404}
# No answer at all: connection refused or dropped, DNS, TLS, time-out.
UNREACHABLE = (ConnectionError, socket.gaierror, ssl.SSLError, TimeoutError)
# Programming errors, which no retry fixes.
BUGS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    TypeError,
    ValueError,
)


class HttpError(Exception):
    """An HTTP answer that is an error: its status, and the beginning of its body as the text."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(body.decode(errors='replace'))
        self.status = status


def is_far(shard: str) -> bool:
    return '://' in shard


def ending(shard: str) -> str:
    """Return the last part of a shard's path, without the query of a URL."""
    return os.path.basename(shard.partition('?')[0] if is_far(shard) else shard)


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, one per thread, and the path in it. Forget old listings of the path."""
    refuse_secret(url, 'shard')
    try:
        from fsspec.core import url_to_fs

        system, path = url_to_fs(url, **options(url))
    except (ImportError, ValueError) as error:
        raise UserError(
            f'{url}: the storage requires another package ({error}); install it', code='no-package'
        ) from error
    system.invalidate_cache(path)
    return system, path


def options(url: str) -> dict[str, bool]:
    """Make s3fs compare the ETag of each answer, and read the version that a URL names."""
    if not url.startswith(('s3://', 's3a://')):
        return {}
    return dict(local_expiry_check=True, version_aware='?versionId=' in url)


@contextmanager
def explained_refusals(url: str) -> Iterator[None]:
    """Turn a refusal into a UserError, and a temporary failure into an OSError, which is retried.

    Programming errors pass through. The text of the original error is dropped because it may contain credentials.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # the disk of this node
        links = list(chain(error))
        first = type(links[-1])
        status = next(filter(None, map(status_of, reversed(links))), 0) or STATUS_OF_KIND.get(
            first, 0
        )
        unreachable = any(isinstance(link, UNREACHABLE) for link in links)
        text = re.sub(r'\w+://\S+', '', ' '.join(f'{type(link).__name__} {link}' for link in links))
        for words, statuses, (code, meaning) in REFUSALS:
            applies = status in statuses if status else words and not unreachable
            if applies and re.search(words, text, re.IGNORECASE):
                raise UserError(f'{url}: {meaning}', code=code) from None
        if isinstance(error, BUGS) and not isinstance(error, OSError):
            raise
        raise OSError(errno.EIO, f'{first.__name__}{f" {status}" if status else ""}') from None


def status_of(error: BaseException) -> int:
    """Return the HTTP status in an error of ours, aiohttp, botocore, requests or httpx; 0 if there is none."""
    answer = getattr(error, 'response', None)
    if isinstance(answer, dict):
        return answer.get('ResponseMetadata', {}).get('HTTPStatusCode', 0)
    status = getattr(answer, 'status_code', None) or getattr(error, 'status', None)
    return status if isinstance(status, int) else 0


def ask(url: str, question: Callable[[Any, str], Answer], limit: float = LIMIT) -> Answer:
    """Ask a storage about a URL. Retry temporary failures."""

    def once() -> Answer:
        with explained_refusals(url):
            return question(*filesystem(url))

    return retried(once, url, PATIENCE, limit)


def listed(place: str, suffixes: tuple[str, ...]) -> list[str]:
    """List the shards of a folder or pattern."""

    def question(system: Any, path: str) -> list[str]:
        names = system.glob(path) if '*' in path else system.ls(path, detail=False)
        return sorted(system.unstrip_protocol(name) for name in names if name.endswith(suffixes))

    return ask(place, question, PATIENCE)  # a thousand names an answer


def stamp_of(shard: str) -> Stamp:
    if is_far(shard):
        return ask(shard, far_stamp)
    status = os.stat(shard)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for its writer
        raise UserError(
            f'{shard}: the shard is not a regular file; leave it out', code='not-a-regular-file'
        )
    return stamp_in(status)


def stamp_in(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


def far_stamp(system: Any, path: str) -> Stamp:
    if is_web(system):
        return requested(system, path)[0]
    info = system.info(path)
    return info['size'], str(next(filter(None, map(info.get, VERSIONS)), ''))


def refuse_unversioned(shard: str, stamp: Stamp) -> None:
    """Raise if a storage states no version of a far shard, so that a replaced shard could go unnoticed."""
    if is_far(shard) and not any(stamp[1:]):
        raise UserError(
            f'{shard}: the storage gives no ETag, version or time of change, so a replaced shard would go unnoticed; set cache '
            'of the data set to a folder of this node, or use another server',
            code='far-unversioned',
        )


def refuse_other(shard: str, current: Stamp, stamp: Stamp) -> None:
    if current != stamp:
        raise UserError(
            f'{shard}: the shard has changed since it was indexed; start again with --resume if it has the same images in the '
            'same order',
            code='shard-changed',
        )


def part(url: str, stamp: Stamp, start: int, size: int) -> bytes:
    """Return some bytes of the shard that has this stamp."""

    def read(system: Any, path: str) -> bytes:
        if is_web(system):
            current, data = requested(system, path, stamp, start, size)
        else:
            current, data = read_opened(system, path, url, stamp, start, size)
        refuse_other(url, current, stamp)
        if len(data) != size:
            raise OSError(errno.EIO, 'cut short')
        return data

    return ask(url, read)


def is_web(system: Any) -> bool:
    return 'https' in system.protocol


def requested(
    system: Any, url: str, stamp: Stamp = (), start: int = 0, size: int = 1
) -> tuple[Stamp, bytes]:
    """Ask a web server for bytes of a shard; return the stamp of the answer, and the bytes if they are the requested ones.

    A given stamp is sent along as a condition. The caller compares it nevertheless: not every server evaluates conditions.
    """
    from fsspec.asyn import sync

    try:
        return sync(system.loop, _requested, system, url, stamp, start, size)
    except OSError:
        raise  # some are ValueErrors as well
    except ValueError:  # its text may hold the address of a redirect
        raise UserError(
            f'{url}: the URL is not valid, or redirects to an invalid one; correct it',
            code='bad-url',
        ) from None


async def _requested(
    system: Any, url: str, stamp: Stamp, start: int, size: int
) -> tuple[Stamp, bytes]:
    settings = dict(system.kwargs)
    headers = {**settings.pop('headers', {}), **conditions(stamp)}
    headers |= {'Range': f'bytes={start}-{start + size - 1}', 'Accept-Encoding': 'identity'}
    session = await system.set_session()
    async with session.get(system.encode_url(url), headers=headers, **settings) as answer:
        if stamp and answer.status == 412:
            return (), b''
        if answer.status not in (200, 206, 416):
            raise HttpError(answer.status, await answer.content.read(BODY))
        content_range = CONTENT_RANGE.fullmatch(answer.headers.get('Content-Range', ''))
        first, total = content_range.groups() if content_range else (None, None)
        if answer.status == 200:
            first, total = '0', answer.headers.get('Content-Length')
        if total is None:
            raise HttpError(416, b'')
        current = (
            int(total),
            answer.headers.get('ETag', ''),
            answer.headers.get('Last-Modified', ''),
        )
        if current != stamp:  # also if there is none yet
            return current, b''
        if first != str(start) or (answer.status == 200 and size != current[0]):
            raise HttpError(416, b'')
        return current, await answer.read()


def conditions(stamp: Stamp) -> dict[str, str]:
    """Return the headers by which a server sends nothing if the shard has changed. A weak ETag never fulfills If-Match."""
    _, etag, modified = stamp or (0, '', '')
    if etag.startswith('"'):
        return {'If-Match': etag}
    return {'If-Unmodified-Since': modified} if modified else {}


def read_opened(
    system: Any, path: str, url: str, stamp: Stamp, start: int, size: int
) -> tuple[Stamp, bytes]:
    """Read from an open shard; return its stamp after that, and the bytes.

    s3fs compares the version of each answer itself. Other packages do not, so they are asked for it after the read.
    """
    try:
        file = open_remote(os.getpid(), threading.get_ident(), url, stamp)
        file.seek(start)
        data = file.read(size)
        return (stamp if options(url) else far_stamp(system, path)), data
    except Exception:
        open_remote.cache_clear()  # open it again, and compare its version again
        raise


@lru_cache(OPEN)
def open_remote(process: int, thread: int, url: str, stamp: Stamp) -> BinaryIO:
    """Open a shard that reads only the bytes that are requested.

    Each process has its own, because connections do not survive a fork. So does each thread, because an abandoned thread
    still moves the position in its file.
    """
    system, path = filesystem(url)
    file = system.open(path, 'rb', cache_type='none')
    refuse_other(url, far_stamp(system, path), stamp)
    return file


def copy(url: str, stamp: Stamp, target: Path) -> None:
    """Copy the shard that has this stamp into a file."""
    with target.open('r+b') as file:
        for start in range(0, stamp[0], BLOCK):
            file.write(part(url, stamp, start, min(BLOCK, stamp[0] - start)))
