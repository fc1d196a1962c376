"""Write files atomically (temporary file, flush, rename), and check types in JSON and YAML.

If a file is invalid, these functions raise a UserError that names the file and the position of the error.
"""

import errno
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from mmairl.errors import UserError, chain

Kind = TypeVar('Kind')
TUPLE = 'tag:yaml.org,2002:python/tuple'
# YAML 1.1 requires a dot in the mantissa of a number. Without this pattern, a learning rate of 1e-3 would be read as text.
NUMBER = (
    'tag:yaml.org,2002:float',
    re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$'),
    list('-+0123456789'),
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of types for files that people write. An unknown key or a value of the wrong type is an error."""


# CSafeLoader, which libyaml provides, is five times as fast as SafeLoader.
class PlainLoader(getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
    """PyYAML's safe loader, extended to read 1e-3 as a number, and to read tuples as mmengine writes them."""


PlainLoader.add_constructor(
    TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True))
)
PlainLoader.add_implicit_resolver(*NUMBER)


def output(path: str | Path, *inputs: str | Path | None) -> Path:
    """Return the path of a file to write. Raise if the path is a folder or one of the input files."""
    path = Path(path)
    if path.is_dir():
        raise UserError(
            f'{path}: expected a file, found a folder; give the name of a file to write',
            code='not-a-file',
        )
    for source in inputs:
        if source and path.exists() and os.path.exists(source) and path.samefile(source):
            raise UserError(
                f'{path}: the output is also an input; give the output another name',
                code='output-is-input',
            )
    return path


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary path, and rename that file to `path` after the block.

    All results are written through this function. If the block fails, the temporary file is removed.

    Raises:
        UserError: If `path` is a folder, a permission is missing or the disk is full. In each of these cases, the file at
            `path` does not change.
    """
    path = output(path)
    temporary = path.with_name(f'.{path.name}.{platform.node()}.{os.getpid()}.tmp')
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            with temporary.open('rb+') as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


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
    return typed(_parsed(path, json.loads, 'JSON'), kind, path)


def read_yaml(path: str | Path, kind: type[Kind] = Any) -> Kind:
    """Read a YAML file and convert its content to the type `kind`."""
    return typed(_parsed(path, partial(yaml.load, Loader=PlainLoader), 'YAML'), kind, path)


def read_text(path: str | Path, encoding: str = 'utf-8') -> str:
    """Return the content of a text file, with every line end as ``\\n``.

    Raises:
        UserError: If the file cannot be read, or if it is not text in the given encoding.
    """
    try:
        return Path(path).read_text(encoding)
    except (OSError, UnicodeDecodeError) as error:
        reason = 'no such file' if isinstance(error, FileNotFoundError) else error
        raise UserError(
            f'{path}: cannot be read as text ({reason}); check the path and the file',
            code='unreadable-file',
        ) from error


def _parsed(path: str | Path, parse: Callable[[str], Any], language: str) -> Any:
    text = read_text(path)
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = ' '.join(str(error).split())[:200]
        raise UserError(
            f'{path}: not a complete {language} file ({type(error).__name__}: {reason}); correct the file, or write it again',
            code=f'not-{language.lower()}',
        ) from error


def typed(content: Any, kind: type[Kind], path: str | Path) -> Kind:
    """Convert the plain values of a file to the type `kind`. If they do not fit, raise a UserError that names the position.

    >>> typed({'a': [1, 'b']}, dict[str, tuple[int, ...]], 'FILE')
    Traceback (most recent call last):
    mmairl.errors.UserError: FILE: [...][1]: Expected `int`, got `str`
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(' - at ')
        # If a `__post_init__` raised a UserError, msgspec states it as the cause, and its code is more specific.
        raise UserError(
            f'{path}: {place.strip("`$.")}: {message}',
            code=getattr(error.__cause__, 'code', '') or 'wrong-content',
        ) from error


@contextmanager
def explained_disk_errors(path: str | Path) -> Iterator[None]:
    """Raise a UserError if the block cannot write to `path`: the disk is full, or a permission is missing."""
    try:
        yield
    except UserError:
        raise
    # Catch every exception, because torch's writer wraps the error of the operating system in a RuntimeError.
    except Exception as error:
        number = next((link.errno for link in chain(error) if isinstance(link, OSError)), None)
        if number not in (*FULL, errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        advice = 'free space' if number in FULL else 'check the folder and its permissions'
        raise UserError(
            f'{path}: cannot be written ({os.strerror(number)}), and any earlier version is kept; {advice}, and start '
            'again, or resume the training run',
            code='disk-full' if number in FULL else 'cannot-write',
        ) from error
