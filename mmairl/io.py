"""Atomic file writes (temporary file, flush, rename), reads with a size limit, and typed JSON and YAML.

Errors are UserErrors that name the file and the position in it.
"""

import errno
import glob
import json
import os
import platform
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import yaml

from mmairl.errors import UserError, chain, closest

Kind = TypeVar('Kind')
TUPLE = 'tag:yaml.org,2002:python/tuple'
# YAML 1.1 requires a dot in the mantissa; without this, a learning rate of 1e-3 would be text.
NUMBER = (
    'tag:yaml.org,2002:float',
    re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$'),
    list('-+0123456789'),
)
# Maximum number of values in a YAML file with all aliases expanded. A few lines can expand to a billion.
LARGEST = 100_000
MIB = 2**20
LARGEST_TEXT = 64 * MIB  # bytes of a text or JSON file
LARGEST_LIST = 1024 * MIB  # bytes of a list or table with a line for each image
LARGEST_YAML = MIB // 4  # bytes; PyYAML takes up to ten seconds for a malicious megabyte
LONGEST_INTEGER = (
    100  # characters; the time to parse 1:30:30:... grows with the square of its length
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnreadableFile(UserError):
    """An error for a file that is missing, not a regular file, too large or not in its format."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of types for files that people write. Unknown keys and values of another type are errors."""


class PlainLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):  # libyaml is five times as fast
    """YAML's safe loader, which also reads 1e-3 as a number, and tuples as mmengine writes them."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > LONGEST_INTEGER:
            raise ValueError('an integer is too long')
        return super().construct_yaml_int(node)


PlainLoader.add_constructor(
    TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)
PlainLoader.add_constructor('tag:yaml.org,2002:int', PlainLoader.construct_yaml_int)
PlainLoader.add_implicit_resolver(*NUMBER)


class WithoutMerges(PlainLoader):
    """PlainLoader without merges (<<), a few lines of which can expand to more keys than fit into memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pass


def output(path: str | Path, *inputs: object) -> Path:
    """Return the path of a result. Raise if it is a folder, a device or one of the input files."""
    path = Path(path)
    with explained_disk_errors(path):
        if path.exists() and not path.is_file():
            kind = 'folder' if path.is_dir() else 'device or pipe'
            raise UserError(
                f'{path}: expected a file, found a {kind}; give the name of a file to write',
                code='not-a-file',
            )
        for source in inputs:
            if not isinstance(source, str | Path) or not path.exists():
                continue
            if Path(source).exists() and path.samefile(source):
                raise UserError(
                    f'{path}: the output is also an input; give the output another name',
                    code='output-is-input',
                )
    return path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` if the block succeeds and is removed if it fails.

    All results are written through this function. A link is replaced, never followed.

    Raises:
        UserError: If `path` is a folder or a device, a permission is missing or the disk is full. `path` does not change.
    """
    path = output(path)
    temporary = path.with_name(f'.{path.name}.{platform.node()}.{os.getpid()}.tmp')
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        temporary.unlink(missing_ok=True)
        try:
            yield temporary
            with temporary.open('rb+') as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _flush_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def _flush_folder(path: Path) -> None:
    """Flush a folder to disk. Without this, a crash can undo a rename in it."""
    folder = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot flush folders
        os.fsync(folder)
    os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes of this machine. Processes of other machines may still run."""
    for temporary in path.parent.glob(f'.{glob.escape(path.name)}.{platform.node()}.*.tmp'):
        process = temporary.name.split('.')[-2]
        if process.isdigit() and not _is_running(int(process)):
            temporary.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # a process of another user
    return True


def appending(path: str | Path) -> IO[str]:
    """Open a text file to read it and to append to it in place. Raise if it is a link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), 'a+')


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with replacing(path) as temporary:
        # A file name in the text may have a lone surrogate, which UTF-8 cannot store.
        temporary.write_text(text, encoding='utf-8', errors='backslashreplace')
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write a JSON file atomically and return its path."""
    return write_text(path, json.dumps(content, indent=1, default=msgspec.to_builtins) + '\n')


def read_json(path: str | Path, kind: type[Kind] = Any) -> Kind:
    """Return the content of a JSON file as `kind`.

    Raises:
        UserError: If the file is missing, incomplete or has another type.
    """
    # Not msgspec.json.decode: results contain NaN, which it rejects.
    return typed(_parsed(path, read_text(path), json.loads, 'JSON'), kind, path)


def read_yaml(path: str | Path, kind: type[Kind] = Any, loader: type = WithoutMerges) -> Kind:
    """Return the content of a YAML file as `kind`. With yaml.BaseLoader, all values are read as text and converted."""
    text = read_text(path, LARGEST_YAML)
    content = _parsed(path, text, partial(parse_yaml, loader=loader), 'YAML')
    return typed(content, kind, path, strict=loader is not yaml.BaseLoader)


def parse_yaml(text: str, loader: type = WithoutMerges) -> Any:
    """Return the values of an untrusted YAML text. Raise OverflowError if it is too long or has too many values."""
    if len(text) > LARGEST_YAML:
        raise OverflowError('the text is too long')
    content = yaml.load(text, loader)
    refuse_expansion(content, LARGEST)
    return content


def refuse_expansion(content: Any, most: int) -> None:
    """Raise OverflowError if a YAML text has more than `most` values with aliases expanded."""
    parts = json.JSONEncoder(skipkeys=True, default=str).iterencode(content)
    if next(islice(parts, most, None), None):
        raise OverflowError('it has too many values')


def read_text(
    path: str | Path, limit: int = LARGEST_TEXT, encoding: str = 'utf-8', errors: str = 'strict'
) -> str:
    """Return the content of a text file, with line ends as ``\\n``; see `read_bytes`."""
    content = read_bytes(path, limit)
    try:
        return TextIOWrapper(BytesIO(content), encoding, errors).read()
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            f'{path}: not text in UTF-8 ({error.reason} at byte {error.start}); save it in UTF-8',
            code='not-text',
        ) from error


def read_bytes(path: str | Path, limit: int = LARGEST_TEXT) -> bytes:
    """Return the content of a small file.

    Read every small file that is not part of mmairl through this function. Otherwise a named pipe could block forever, and a
    device or a sparse file could fill the memory.

    Raises:
        UnreadableFile: If the path is not a regular file, cannot be read or has more than `limit` bytes.
    """
    try:
        with open(path, 'rb', opener=open_without_waiting) as file:
            status = os.fstat(file.fileno())
            readable = stat.S_ISREG(status.st_mode) and status.st_size <= limit
            content = file.read(limit + 1) if readable else b''
    # ValueError: a null byte in the name.
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UnreadableFile(f'{path}: no such file; check the path', code='no-file') from error
    except OSError as error:
        raise UnreadableFile(
            f'{path}: cannot be read ({error.strerror}); check the path and its permissions',
            code='unreadable-file',
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(
            f'{path}: not a regular file but a pipe or device; check the path',
            code='not-a-regular-file',
        )
    if max(status.st_size, len(content)) > limit:
        raise UnreadableFile(
            f'{path}: larger than {limit} bytes; check the path', code='file-too-large'
        )
    return content


def require_inside(path: str | Path, folder: str | Path) -> None:
    """Raise if a path in a folder leads out of it by links. A page about an untrusted folder must not show other files."""
    if not Path(path).resolve().is_relative_to(Path(folder).resolve()):
        raise UserError(
            f'{path}: a link leads out of the folder {folder}; replace the link with a copy of the file',
            code='link-leads-out',
        )


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file for `open(opener=...)`. Without O_NONBLOCK, opening a named pipe would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _parsed(path: str | Path, text: str, parse: Callable[[str], Any], language: str) -> Any:
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise UnreadableFile(
            f'{path}: not a complete {language} file ({type(error).__name__}: {reason}); correct it, or write it again',
            code=f'not-{language.lower()}',
        ) from error


def typed(content: Any, kind: type[Kind], path: str | Path, strict: bool = True) -> Kind:
    """Return plain values as `kind`, or raise a UserError with the file and the position in it.

    >>> typed({'a': [1, 'b']}, dict[str, tuple[int, ...]], 'FILE')
    Traceback (most recent call last):
    mmairl.errors.UserError: FILE: [...][1]: expected `int`, got `str`
    """
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(' - at ')
        message = message[0].lower() + message[1:]
        place = place.replace('`', '').replace('$.', '').replace('$', '')
        unknown = message.partition('unknown field `')[2].rstrip('`')
        fields = {
            name for declared in Declared.__subclasses__() for name in declared.__struct_fields__
        }
        # The cause is an error in a `__post_init__`.
        code = getattr(error.__cause__, 'code', '') or 'wrong-content'
        raise UserError(
            f'{path}: {place and place + ": "}{message}{closest(unknown, fields)}', code=code
        ) from error


@contextmanager
def explained_disk_errors(path: str | Path) -> Iterator[None]:
    """Raise a UserError if writing to `path` fails: a full disk, a missing permission, or an invalid name."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # torch's writer wraps the system's error in a RuntimeError
        cause = next((link for link in chain(error) if isinstance(link, OSError)), None)
        if cause is None:
            raise
        if cause.errno in FULL:
            raise UserError(
                f'{path}: the disk is full, so the file was not written and has not changed; free some space and run the '
                'command again (a training run with --resume)',
                code='disk-full',
            ) from error
        if not _concerns(cause, Path(path)):
            raise
        raise UserError(
            f'{path}: cannot be written ({cause.strerror}); check the folder and its permissions',
            code='cannot-write',
        ) from error


def _concerns(error: OSError, path: Path) -> bool:
    """Return whether an error concerns a path, a parent folder, or a file in the path or next to it."""
    names = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str)]
    return any(
        name in (path, *path.parents) or path.parent == name.parent or path in name.parents
        for name in names
    )


class BackgroundWriter:
    """Run one job at a time in a thread, so that a training step does not wait for the disk.

    The next call of a method raises the error of a failed job.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, 'checkpoint')
        self.job: Future | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Start a job after the previous one has ended, so that at most one checkpoint waits in memory."""
        self.finish()
        self.job = self.thread.submit(write)

    def check(self) -> None:
        """Raise the error of the job, if it has ended."""
        if self.job is not None and self.job.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the job has ended."""
        job, self.job = self.job, None
        if job is not None:
            job.result()
