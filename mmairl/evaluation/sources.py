"""Digests of the source code that a result depends on.

They cover three things: the modules outside the installed packages that a config imports, with all that these import in turn;
the implementation of a protocol; and the whole package. Comments, docstrings and formatting do not count.
"""

import ast
import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from mmengine import Config

from mmairl.config import walk

PACKAGE = Path(__file__).resolve().parents[1]
OURS = 'mmairl'
# Their versions are recorded, also where they are installed from a checkout.
VERSIONED = (OURS, 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'torch', 'torchvision')
INSTALLED = ('site-packages', 'dist-packages')
STANDARD_LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ('stdlib', 'platstdlib'))
NOT_FOUND = 'not found'
ROOM = f'{OURS}.evaluation'
# Modules that decide which results match, not what a score is. Identities have a revision of their own.
BOOKKEEPING = tuple(
    f'{ROOM}.{name}' for name in ('identity', 'protocol', 'sources', 'duplicates', 'overlap')
)


def outside_sources(cfg: Config) -> dict[str, str]:
    """Return a digest of each module outside the installed packages that a config imports, directly or not, by its name.

    A config imports by `custom_imports`, by a `type` with dots and by the path of a Python file.
    """
    files: dict[str, Path] = {}
    custom = cfg.get('custom_imports') or {}
    imports = custom.get('imports') or ()
    if isinstance(imports, str):
        imports = [imports]
    direct = set(imports)
    for keys, value in walk(cfg.to_dict()):
        if not isinstance(value, str):
            continue
        if keys[-1] == 'type' and '.' in value:
            direct.add(value)
        elif value.endswith('.py') and os.path.isfile(value):
            files[Path(value).name] = Path(value).resolve()
    parents = {str(path.parent) for path in files.values()}
    folders = sorted(parents)

    def find(name: str) -> Path | None:
        return files.get(name) or _outside_file(name, folders)

    missing = [name for name in imports if _is_missing(name, folders)]
    found = _closure([*direct, *files], find)
    found.update(dict.fromkeys(missing, NOT_FOUND))
    return dict(sorted(found.items()))


def changed_sources(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Name the modules whose source differs; '' if none does, or if it is unknown of `before`."""
    if before is None:
        return ''
    now = now or {}
    every = sorted({*before, *now})
    changed = [name for name in every if before.get(name) != now.get(name)]
    return f'the source of {", ".join(changed)}' if changed else ''


def protocol_source(kind: type) -> str:
    """Return a digest of a protocol: the modules of its class and its bases, and what these import of the evaluation room.

    Modules that do not affect scores, such as those of identities, do not count.
    """
    modules = {base.__module__ for base in kind.__mro__} - {'builtins', 'abc'}

    def find(name: str) -> Path | None:
        if name in BOOKKEEPING:
            return None
        if name.startswith(f'{ROOM}.'):
            return _package_file(name)
        if name not in modules:
            return None
        path = getattr(sys.modules.get(name), '__file__', None)
        return Path(path) if path else None

    return key_of(_closure(sorted(modules), find))


def room_source(names: Iterable[str]) -> str:
    """Return a digest of files of the evaluation room."""
    digests = {}
    for name in names:
        path = _package_file(f'{ROOM}.{name}')
        digests[name], _ = _source(path, name)
    return key_of(digests)


def package_source() -> str:
    """Return a digest of every Python file of the package."""
    digests = {}
    for path in PACKAGE.rglob('*.py'):
        inner = path.relative_to(PACKAGE)
        if '.mim' not in inner.parts:
            digests[inner.as_posix()], _ = _source(path, '')
    return key_of(digests)


def _closure(names: Iterable[str], find: Callable[[str], Path | None]) -> dict[str, str]:
    """Return the digest of each module that `find` locates, of these names and of all that they import in turn."""
    digests: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [part for name in names for part in _with_parents(name)]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if (path := find(name)) is None:
            continue
        digests[name], imports = _source(path, name)
        waiting += [part for imported in imports for part in _with_parents(imported)]
    return digests


def _with_parents(name: str) -> list[str]:
    """Return the name of a module and of the packages around it.

    >>> _with_parents('a.b')
    ['a', 'a.b']
    """
    if name.endswith('.py'):
        return [name]
    parts = name.split('.')
    return ['.'.join(parts[:end]) for end in range(1, len(parts) + 1)]


def _package_file(name: str) -> Path | None:
    _, *inner = name.split('.')
    path = PACKAGE.joinpath(*inner).with_suffix('.py')
    return path if path.is_file() else None


def _outside_file(name: str, folders: list[str]) -> Path | None:
    """Return the file of a module, unless it is part of Python, of an installed package or of a versioned one."""
    top = name.partition('.')[0]
    if not top or top in VERSIONED or top in sys.stdlib_module_names:
        return None
    spec = _spec(name, folders)
    if spec is None or not spec.has_location:
        return None
    path = Path(spec.origin)
    if not path.is_file() or any(part in INSTALLED for part in path.parts):
        return None
    standard = any(path.is_relative_to(folder) for folder in STANDARD_LIBRARY)
    return None if standard else path


def _spec(name: str, folders: list[str]) -> Any:
    """Find a module as a new process would, without importing the packages around it."""
    top, *inner = name.split('.')
    spec = None
    for finder in sys.meta_path:
        if spec is None and hasattr(finder, 'find_spec'):
            spec = finder.find_spec(top, None)
    spec = spec or PathFinder.find_spec(top, folders)
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _is_missing(name: str, folders: list[str]) -> bool:
    top, *_ = name.split('.')
    return top not in VERSIONED and _spec(name, folders) is None


def _source(path: Path, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a file, and the names of all that it imports."""
    status = path.stat()
    return _parsed(path, name, (status.st_size, status.st_mtime_ns))


@cache
def _parsed(path: Path, name: str, version: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    content = path.read_bytes()
    try:
        tree = ast.parse(content)
        above, _, _ = name.rpartition('.')
        package = name if path.stem == '__init__' else above
        return key_of(_essence(tree)), tuple(_imports(tree, package))
    # The file may be compiled, of another Python, or nested too deeply.
    except (SyntaxError, ValueError, RecursionError):
        return key_of(content.hex()), ()


def _essence(node: Any) -> Any:
    """Return a syntax tree as plain values, without docstrings and empty fields, which differ between Python versions."""
    if isinstance(node, ast.AST):
        fields = {}
        for name, value in ast.iter_fields(node):
            content = _essence(value)
            if content not in (None, []):
                fields[name] = content
        return [type(node).__name__, fields]
    if isinstance(node, list):
        return [_essence(part) for part in node if not _is_text(part)]
    return node if node is None else repr(node)


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield the names that a module imports, inside of functions too, and by `import_module` of a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _imported_from(node, package)
            yield base
            yield from (f'{base}.{alias.name}'.lstrip('.') for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            plain = getattr(node.func, 'id', '')
            called = getattr(node.func, 'attr', plain)
            name = getattr(node.args[0], 'value', None)
            if called in ('import_module', '__import__') and isinstance(name, str):
                yield f'{package}{name}' if name.startswith('.') else name


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """Return the full name of the module after `from`."""
    if not node.level:
        return node.module
    parts = package.split('.')
    above = parts[: len(parts) - node.level + 1]
    if node.module:
        above.append(node.module)
    return '.'.join(above)


def key_of(content: Any) -> str:
    """Return 16 hexadecimal digits that stand for nested plain values."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
