"""Files that are there whole or not at all: write beside, flush to disk, rename. JSON and YAML are read as a declared type.

What goes wrong is one sentence, with the file and the place in it.
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
# The words of msgspec's messages.
KINDS = {
    'int': 'a whole number',
    'float': 'a number',
    'str': 'text',
    'bool': 'true or false',
    'null': 'nothing',
    'array': 'a list',
    'object': 'keys and values',
}

TUPLE = 'tag:yaml.org,2002:python/tuple'
# YAML 1.1 wants a dot in the mantissa; without this a learning rate of 1e-3 would be text.
NUMBER = ('tag:yaml.org,2002:float', re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$'), list('-+0123456789'))
LARGEST = 100_000  # values in a YAML file with all that it refers to; a few lines can stand for a billion
MIB = 2**20
LARGEST_TEXT = 64 * MIB  # bytes of a text or JSON file
LARGEST_LIST = 1024 * MIB  # bytes of a list or table with a line for each image
LARGEST_YAML = MIB // 4  # PyYAML takes up to ten seconds for a hostile megabyte
LONGEST_INTEGER = 100  # characters; 1:30:30:... costs the square of its length
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class UnreadableFile(UserError):
    """A file that is missing, is not a regular file, is too large or is not in its format."""


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of what people declare in a file: a key that nothing reads and a value of another type are refused."""


class PlainLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):  # libyaml is five times as fast
    """The safe loader of YAML, which also reads 1e-3 as a number, and the tuples that mmengine writes."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > LONGEST_INTEGER:
            raise ValueError('an integer is too long')
        return super().construct_yaml_int(node)


PlainLoader.add_constructor(TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
PlainLoader.add_constructor('tag:yaml.org,2002:int', PlainLoader.construct_yaml_int)
PlainLoader.add_implicit_resolver(*NUMBER)


class WithoutMerges(PlainLoader):
    """The same without merges (<<), of which a few lines can stand for more keys than fit into memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        pass


def output(path: str | Path, *inputs: object) -> Path:
    """Return where a user wants a result; refuse a folder, a device and the files that the result is made from."""
    path = Path(path)
    with explained_disk_errors(path):
        if path.exists() and not path.is_file():
            kind = 'folder' if path.is_dir() else 'device or pipe'
            raise UserError(f'{path} is a {kind}, not a file; give the name of a file to write')
        for source in (Path(source) for source in inputs if isinstance(source, str | Path)):
            if path.exists() and source.exists() and path.samefile(source):
                raise UserError(f'{path} is the file to read from; give the output another name')
    return path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds and is removed when it fails.

    All writing of results goes through here: a link is replaced and never followed. A folder, a device, a missing
    permission and a full disk are each a UserError; `path` is then as it was before.
    """
    path = output(path)
    beside = path.with_name(f'.{path.name}.{platform.node()}.{os.getpid()}.tmp')
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        beside.unlink(missing_ok=True)
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


def appending(path: str | Path) -> IO[str]:
    """Open a text file that is read and written at its end, in place; a link is refused."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), 'a+')


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file, whole or not at all, and return where it is; for every text that a command leaves behind."""
    with replacing(path) as beside:
        beside.write_text(text, encoding='utf-8')
    return Path(path)


def write_json(path: str | Path, content: object) -> Path:
    """Write a JSON file, whole or not at all, and return where it is; for every JSON file that a command leaves behind."""
    return write_text(path, json.dumps(content, indent=1, default=msgspec.to_builtins) + '\n')


def read_json(path: str | Path, kind: type[Kind] = Any) -> Kind:
    """Return what a JSON file holds, as `kind`; a file that is missing, cut off or something else is a UserError."""
    return typed(_parsed(path, read_text(path), json.loads, 'JSON'), kind, path)


def read_yaml(path: str | Path, kind: type[Kind] = Any, loader: type = WithoutMerges) -> Kind:
    """Return what a YAML file holds, as `kind`; by yaml.BaseLoader all values are text, which counts as the number in it."""
    content = _parsed(path, read_text(path, LARGEST_YAML), partial(parse_yaml, loader=loader), 'YAML')
    return typed(content, kind, path, loader is not yaml.BaseLoader)


def parse_yaml(text: str, loader: type = WithoutMerges) -> Any:
    """Return the values of an untrusted text in YAML. Raise OverflowError if it is too long or holds too many values."""
    if len(text) > LARGEST_YAML:
        raise OverflowError('it is too large')
    content = yaml.load(text, loader)
    if next(islice(json.JSONEncoder(default=str).iterencode(content), LARGEST, None), None):
        raise OverflowError('it is too large')
    return content


def read_text(path: str | Path, limit: int = LARGEST_TEXT, encoding: str = 'utf-8', errors: str = 'strict') -> str:
    """Return the content of a text file, with line ends as ``\\n``; see `read_bytes`."""
    content = read_bytes(path, limit)
    try:
        return TextIOWrapper(BytesIO(content), encoding, errors).read()
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            f'{path} cannot be read (UnicodeDecodeError: {error.reason} at byte {error.start}); save it in UTF-8',
            code='not-text',
        ) from error


def read_bytes(path: str | Path, limit: int = LARGEST_TEXT) -> bytes:
    """Return the content of a small file.

    Read every small file through this function unless it is part of mmairl: a named pipe never answers, a device never
    ends, and a sparse file of a few bytes on disk can be larger than the memory.

    Raises:
        UnreadableFile: If the path is not a regular file, cannot be read or has more than `limit` bytes.
    """
    try:
        with open(path, 'rb', opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            content = file.read(limit + 1) if stat.S_ISREG(status.st_mode) and status.st_size <= limit else b''
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a null byte in the name
        raise UnreadableFile(f'there is no file {path}; check the path', code='no-file') from error
    except IsADirectoryError as error:
        raise UnreadableFile(
            f'there is no file {path}, but a folder; check the path', code='not-a-regular-file'
        ) from error
    except OSError as error:
        raise UnreadableFile(
            f'{path} cannot be read ({error.strerror}); check its permissions, or make it again', code='unreadable-file'
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile(
            f'there is no file {path}, but a pipe or device; check the path', code='not-a-regular-file'
        )
    if max(status.st_size, len(content)) > limit:
        raise UnreadableFile(f'{path}: larger than {limit} bytes; check the path', code='file-too-large')
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # without it, opening a named pipe waits for a writer


def _parsed(path: str | Path, text: str, parse: Callable[[str], Any], language: str) -> Any:
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError, OverflowError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise UnreadableFile(
            f'{path} is not a whole {language} file ({type(error).__name__}: {reason}); correct it, or make it again',
            code=f'not-{language.lower()}',
        ) from error


def typed(content: Any, kind: type[Kind], path: str | Path, strict: bool = True) -> Kind:
    """Return plain values as `kind`; what does not fit is a sentence with the file and the place in it.

    >>> typed({'a': [1, 'b']}, dict[str, tuple[int, ...]], 'FILE')
    Traceback (most recent call last):
    mmairl.errors.UserError: FILE: [...][1]: expected a whole number, got text
    """
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        said, _, place = str(error).replace('`key` in ', 'a key of ').partition(' - at ')
        unknown = said.partition('unknown field `')[2].rstrip('`')
        near = closest(unknown, {name for kind in Declared.__subclasses__() for name in kind.__struct_fields__})
        said = re.sub(
            '`(.*?)`', lambda names: ' or '.join(KINDS.get(name, f'`{name}`') for name in names[1].split(' | ')), said
        )
        place = re.sub(r'\$\.?|`', '', place)
        code = getattr(error.__cause__, 'code', '')  # of a UserError in a `__post_init__`
        raise UserError(f'{path}: {place and place + ": "}{said[0].lower()}{said[1:]}{near}', code=code) from error


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of this name whose process was killed on this machine; those of others may be in use."""
    for left in path.parent.glob(f'.{glob.escape(path.name)}.{platform.node()}.*.tmp'):
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
