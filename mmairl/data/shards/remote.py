"""Access through `fsspec` to shards with a URL (s3://, gs://, hf://, https://).

After each read, the size and the version of the shard are compared with those in the index, so that a run stops if a shard
is replaced. Temporary failures are retried, and other failures raise a clear error. Credentials are found by the package that
accesses the storage, such as s3fs. A URL that may contain a secret is rejected.
"""

import errno
import os
import re
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from mmairl.data.reading import retried
from mmairl.errors import UserError, chain, explained, refuse_secret
from mmairl.io import FULL

# A shard counts as changed if its stamp differs from an earlier stamp. The stamp of a local shard is its size and its
# modification time. The stamp of a remote shard is its size, its version (such as an ETag) and the header Last-Modified. A
# version or header that the storage does not state is ''.
Stamp = tuple[int | str, ...]
LIMIT = 30  # time limit of a request in seconds, in addition to the limits of the package that accesses the storage
PATIENCE = 120  # total time limit in seconds of all tries of a request
BLOCK = 2**23  # a shard is copied by requests of this many bytes
VERSIONS = (
    'ETag', 'etag', 'generation', 'LastModified', 'last_modified', 'mtime', 'modify', 'blob_id',
)  # fmt: skip
BAD_URL = 'bad-url'
MISSING = 'remote-missing'
REFUSED = 'remote-refused'
NO_RANGES = 'no-http-ranges'
MEANINGS = {
    BAD_URL: 'the URL is not valid, or redirects to an invalid URL; correct the URL',
    MISSING: 'the shard does not exist; restore the shard, or correct the URL',
    REFUSED: 'the storage refuses the request; check that the credentials are valid, have not expired and allow reading, and '
    'check the region and endpoint, then continue with --resume',
    NO_RANGES: 'the server does not support HTTP ranges; download the shards, or use another server',
}
# The HTTP statuses for which a request is not retried, and the code of the UserError that is raised for each.
REFUSALS = {404: MISSING, 410: MISSING, 416: NO_RANGES}
REFUSALS |= dict.fromkeys((301, 307, 400, 401, 403), REFUSED)
# Some errors about credentials have no HTTP status, for example if the file with the credentials is missing. These words
# identify them.
NO_CREDENTIALS = re.compile('credential|forbidden|denied|unauthori[sz]ed|expired', re.IGNORECASE)
# If no error in a chain of causes states an HTTP status, the type of the original error may imply a status.
STATUS_OF_KIND = {PermissionError: 403, FileNotFoundError: 404}
# These errors mean that the server did not answer: the connection was refused or dropped, DNS or TLS failed, or a time limit
# was exceeded.
UNREACHABLE = (ConnectionError, socket.gaierror, ssl.SSLError, TimeoutError)


def is_remote(shard: str) -> bool:
    return '://' in shard


def base_name(shard: str) -> str:
    """Return the file name of a shard. If the shard is a URL, its query ('?...') is left out."""
    return os.path.basename(shard.partition('?')[0] if is_remote(shard) else shard)


class Remote:
    """A remote shard, folder or pattern: its file system (of fsspec) and its path in the file system."""

    def __init__(self, url: str) -> None:
        self.url = url
        options = {}
        if url.startswith(('s3://', 's3a://')):
            options = dict(version_aware='?versionId=' in url)
        elif url.startswith('http'):
            options = dict(headers={'Accept-Encoding': 'identity'})
        fault = f'{url}: the storage requires another package'
        with explained(fault, 'install it', (ImportError,), code='no-package'):
            from fsspec.core import url_to_fs

            self.system, self.path = url_to_fs(url, **options)

    def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the file system on the path. If the file system is asynchronous, set a time limit."""
        limit = dict(timeout=LIMIT) if self.system.async_impl else {}
        return getattr(self.system, method)(self.path, **arguments, **limit)

    def stamp(self) -> Stamp:
        self.system.invalidate_cache(self.path)
        info = self.ask('info')
        if info['size'] is None:
            refuse(self.url, NO_RANGES)
        version = next(filter(None, map(info.get, VERSIONS)), '')
        return info['size'], str(version), info.get('Last-Modified', '')

    def part(self, stamp: Stamp, start: int, size: int) -> bytes:
        """Return a range of bytes of the shard. Raise if the stamp shows that the shard has changed."""
        try:
            data = self.ask('cat_file', start=start, end=start + size)
        finally:
            refuse_other(self.url, self.stamp(), stamp)
        if len(data) > size:
            refuse(self.url, NO_RANGES)
        if len(data) < size:
            raise OSError(errno.EIO, 'cut short')
        return data

    def shards(self, suffixes: tuple[str, ...]) -> list[str]:
        """Return the URLs of the shards in this folder, or of the shards that match this pattern."""
        self.system.invalidate_cache(self.path)
        is_pattern = '*' in self.path
        names = self.ask('glob') if is_pattern else self.ask('ls', detail=False)
        return sorted(
            self.system.unstrip_protocol(name) for name in names if name.endswith(suffixes)
        )


def call_remote(url: str, method: str, *arguments: Any) -> Any:
    """Call a method of `Remote(url)` and return its result. Temporary failures are retried."""
    refuse_secret(url, 'shard')

    def once() -> Any:
        with explained_refusals(url):
            return getattr(Remote(url), method)(*arguments)

    return retried(once, url, PATIENCE)


@contextmanager
def explained_refusals(url: str) -> Iterator[None]:
    """Turn errors of the storage into errors that `retried` handles.

    If the storage refuses the request, raise a UserError. If the failure may be temporary, raise an OSError, which is
    retried. Programming errors are raised unchanged. The text of the original error is dropped, because it may contain
    credentials.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise  # the disk of this node is full, so another try would fail, too
        # The condition leaves out CancelledError, which is the cause of a time-out and not derived from Exception.
        links = [link for link in chain(error) if isinstance(link, Exception)]
        first = type(links[-1])
        if issubclass(first, ValueError) and not issubclass(first, OSError):
            refuse(url, BAD_URL)
        status = next(filter(None, map(status_of, reversed(links))), STATUS_OF_KIND.get(first, 0))
        if status in REFUSALS:
            refuse(url, REFUSALS[status])
        unreachable = any(isinstance(link, UNREACHABLE) for link in links)
        text = re.sub(r'\w+://\S+', '', ' '.join(f'{type(link).__name__} {link}' for link in links))
        if not status and not unreachable and NO_CREDENTIALS.search(text):
            refuse(url, REFUSED)
        if type(error).__module__ == 'builtins' and not isinstance(error, OSError):
            raise
        raise OSError(errno.EIO, f'{first.__name__}{f" {status}" if status else ""}') from None


def refuse(url: str, code: str) -> NoReturn:
    raise UserError(f'{url}: {MEANINGS[code]}', code=code) from None


def status_of(error: BaseException) -> int:
    """Return the HTTP status in an error of aiohttp, botocore, requests or httpx, or 0 if the error has no status."""
    answer = getattr(error, 'response', None)
    if isinstance(answer, dict):
        return answer.get('ResponseMetadata', {}).get('HTTPStatusCode', 0)
    status = getattr(answer, 'status_code', None) or getattr(error, 'status', None)
    return status if isinstance(status, int) else 0


def stamp_of(shard: str) -> Stamp:
    if is_remote(shard):
        return call_remote(shard, 'stamp')
    status = os.stat(shard)
    if not stat.S_ISREG(status.st_mode):  # reading from a pipe, for example, could block forever
        raise UserError(
            f'{shard}: the shard is not a regular file; leave the shard out',
            code='not-a-regular-file',
        )
    return stamp_in(status)


def stamp_in(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns


def refuse_other(shard: str, current: Stamp, stamp: Stamp) -> None:
    if current != stamp:
        raise UserError(
            f'{shard}: the shard has changed since it was indexed; if the shard still has the same images in the same order, '
            'continue with --resume',
            code='shard-changed',
        )


def part(url: str, stamp: Stamp, start: int, size: int) -> bytes:
    """Return a range of bytes of a remote shard. Raise if the stamp shows that the shard has changed."""
    if not size:  # HTTP has no empty ranges
        return b''
    return call_remote(url, 'part', stamp, start, size)


def copy(url: str, stamp: Stamp, target: Path) -> None:
    """Copy a remote shard into an existing file. Raise if the stamp shows that the shard has changed."""
    with target.open('r+b') as file:
        for start in range(0, stamp[0], BLOCK):
            file.write(part(url, stamp, start, min(BLOCK, stamp[0] - start)))
