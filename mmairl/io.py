"""Write files atomically (temporary file, flush, rename), limit the size of files to read, and check types in JSON and YAML.

If a file is invalid, these functions raise a UserError that names the file and the position of the error.
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
# YAML 1.1 requires a dot in the mantissa of a number. Without this pattern, a learning rate of 1e-3 would be read as text.
NUMBER = (
    'tag:yaml.org,2002:float',
    re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$'),
    list('-+0123456789'),
)
# The maximum number of values in a YAML file after all aliases are expanded. A few lines can expand to a billion values.
LARGEST = 100_000
MIB = 2**20
LARGEST_TEXT = 64 * MIB  # maximum size in bytes of a text or JSON file
LARGEST_LIST = 1024 * MIB  # maximum size in bytes of a list or table that has a line for each image
# The maximum size of a YAML file in bytes. PyYAML takes up to ten seconds to read a malicious megabyte.
LARGEST_YAML = MIB // 4
# The maximum number of characters of an integer in YAML. The time to parse 1:30:30:... grows with the square of its length.
LONGEST_INTEGER = 100
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnreadableFile(UserError):
    """An error for a file that is missing, not a regular file, too large or not in its format."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of types for files that people write. An unknown key or a value of the wrong type is an error."""


# CSafeLoader, which libyaml provides, is five times as fast as SafeLoader.
class PlainLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
    """PyYAML's safe loader, extended to read 1e-3 as a number, and to read tuples as mmengine writes them."""

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
    """PlainLoader without merge keys (<<), because a few lines with merge keys can expand to more keys than fit into memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pass


def output(path: str | Path, *inputs: object) -> Path:
    """Return the path of a file to write. Raise if the path is a folder, a device or one of the input files."""
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
    """Write a file atomically: yield a temporary path, and rename that file to `path` after the block.

    All results are written through this function. If the block fails, the temporary file is removed. If `path` is a symbolic
    link, the link is replaced, and the file that it refers to does not change.

    Raises:
        UserError: If `path` is a folder or a device, a permission is missing or the disk is full. In each of these cases,
            the file at `path` does not change.
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
    """Flush a folder to disk. Otherwise a crash could undo a rename in the folder."""
    folder = os.open(path, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot flush folders
        os.fsync(folder)
    os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files for `path` that are left over from killed processes of this machine.

    Files of other machines are kept, because it is unknown whether the processes there are still running.
    """
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
        pass  # this error means that the process is running and belongs to another user
    return True


def appending(path: str | Path) -> IO[str]:
    """Open a text file for reading and appending. Raise if `path` is a link.

    Unlike `replacing`, this function changes the file in place.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o666), 'a+')


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file atomically and return its path."""
    with replacing(path) as temporary:
        # A file name in the text may have a lone surrogate. UTF-8 cannot store it, so it is escaped.
        temporary.write_text(text, encoding='utf-8', errors='backslashreplace')
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write a JSON file atomically and return its path."""
    return write_text(path, json.dumps(content, indent=1, default=msgspec.to_builtins) + '\n')


def read_json(path: str | Path, kind: type[Kind] = Any) -> Kind:
    """Read a JSON file and convert its content to the type `kind`.

    Raises:
        UserError: If the file is missing or incomplete, or if its content does not have the type `kind`.
    """
    # msgspec.json.decode is not used, because it rejects NaN, which result files contain.
    return typed(_parsed(path, read_text(path), json.loads, 'JSON'), kind, path)


def read_yaml(path: str | Path, kind: type[Kind] = Any, loader: type = WithoutMerges) -> Kind:
    """Read a YAML file and convert its content to the type `kind`.

    With yaml.BaseLoader, every value is read as text first and then converted to the type that `kind` declares for it.
    """
    text = read_text(path, LARGEST_YAML)
    content = _parsed(path, text, partial(parse_yaml, loader=loader), 'YAML')
    return typed(content, kind, path, strict=loader is not yaml.BaseLoader)


def parse_yaml(text: str, loader: type = WithoutMerges) -> Any:
    """Return the values of an untrusted YAML text. Raise OverflowError if the text is too long or has too
    many values.
    """
    if len(text) > LARGEST_YAML:
        raise OverflowError('the text is too long')
    content = yaml.load(text, loader)
    refuse_expansion(content, LARGEST)
    return content


def refuse_expansion(content: Any, most: int) -> None:
    """Raise OverflowError if the content of a YAML file has more than `most` values after all aliases are expanded.

    Each entry of a dictionary counts as four values.
    """
    parts = json.JSONEncoder(skipkeys=True, default=str).iterencode(content)
    if next(islice(parts, most, None), None):
        raise OverflowError('it has too many values')


def read_text(
    path: str | Path, limit: int = LARGEST_TEXT, encoding: str = 'utf-8', errors: str = 'strict'
) -> str:
    """Return the content of a text file, with every line end as ``\\n``.

    Raises:
        UnreadableFile: If `read_bytes` raises this error, or if the file is not text in the given encoding.
    """
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
    # `open` raises ValueError if the path contains a null byte.
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:
        raise UnreadableFile(f'{path}: no such file; check the path', code='no-file') from error
    except OSError as error:
        raise UnreadableFile(
            f'{path}: cannot be read ({error.strerror}); check the path and its permissions',
            code='unreadable-file',
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(
            f'{path}: expected a regular file, found a pipe or device; check the path',
            code='not-a-regular-file',
        )
    if max(status.st_size, len(content)) > limit:
        raise UnreadableFile(
            f'{path}: larger than {limit} bytes; check the path', code='file-too-large'
        )
    return content


def require_inside(path: str | Path, folder: str | Path) -> None:
    """Raise if symbolic links make a path in a folder refer to a file outside the folder.

    Otherwise, a page about an untrusted folder could show other files of the user.
    """
    if not Path(path).resolve().is_relative_to(Path(folder).resolve()):
        raise UserError(
            f'{path}: a symbolic link leads out of the folder {folder}; replace the link with a copy of the file',
            code='link-leads-out',
        )


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file; pass this function to `open` as `opener`.

    Without O_NONBLOCK, opening a named pipe would wait until another process writes to the pipe.
    """
    return os.open(path, flags | os.O_NONBLOCK)


def _parsed(path: str | Path, text: str, parse: Callable[[str], Any], language: str) -> Any:
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise UnreadableFile(
            f'{path}: not a complete {language} file ({type(error).__name__}: {reason}); correct the file, or write it again',
            code=f'not-{language.lower()}',
        ) from error


def typed(content: Any, kind: type[Kind], path: str | Path, strict: bool = True) -> Kind:
    """Convert the plain values of a file to the type `kind`. If they do not fit, raise a UserError that names the position.

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
        # If a `__post_init__` raised a UserError, msgspec states it as the cause. The code of the UserError is more specific
        # than 'wrong-content'.
        code = getattr(error.__cause__, 'code', '') or 'wrong-content'
        raise UserError(
            f'{path}: {place and place + ": "}{message}{closest(unknown, fields)}', code=code
        ) from error


@contextmanager
def explained_disk_errors(path: str | Path) -> Iterator[None]:
    """Raise a UserError if the block cannot write to `path`: the disk is full, a permission is missing or a name is invalid."""
    try:
        yield
    except UserError:
        raise
    # Catch every exception, because torch's writer wraps the error of the operating system in a RuntimeError.
    except Exception as error:
        cause = next((link for link in chain(error) if isinstance(link, OSError)), None)
        if cause is None:
            raise
        if cause.errno in FULL:
            raise UserError(
                f'{path}: the disk is full, so the file was not written, and any earlier version is kept; free space and run '
                'the command again (a training run with --resume)',
                code='disk-full',
            ) from error
        if not _concerns(cause, Path(path)):
            raise
        raise UserError(
            f'{path}: cannot be written ({cause.strerror}); check the folder and its permissions',
            code='cannot-write',
        ) from error


def _concerns(error: OSError, path: Path) -> bool:
    """Return whether an error names a path, a parent folder of the path, a file below it, or a file next to it."""
    names = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, str)]
    return any(
        name in (path, *path.parents) or path.parent == name.parent or path in name.parents
        for name in names
    )


class BackgroundWriter:
    """Write files in a background thread, so that training does not wait for the disk.

    The thread runs one job at a time. If a job fails, the next call of any method raises the error of that job.
    """

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, 'checkpoint')
        self.job: Future | None = None

    def start(self, write: Callable[[], None]) -> None:
        """Wait until the previous job has ended, then start this job. At most one checkpoint thus waits in memory."""
        self.finish()
        self.job = self.thread.submit(write)

    def check(self) -> None:
        """Raise the error of the job if the job has already failed. Do not wait for the job."""
        if self.job is not None and self.job.done():
            self.finish()

    def finish(self) -> None:
        """Wait until the job has ended, and raise its error if it failed."""
        job, self.job = self.job, None
        if job is not None:
            job.result()
