"""Compute digests of the source code that a result depends on.

`outside_sources` covers the modules that a config imports, directly or through other modules, from outside the installed
packages. `protocol_source` covers the implementation of a protocol, `room_source` covers given modules of
`mmairl.evaluation`, and `package_source` covers all of mmairl. Comments, docstrings and formatting do not change a digest.
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
# For these packages, the version is recorded instead of the source code, even if they are installed from a checkout.
VERSIONED = (OURS, 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg', 'torch', 'torchvision')
INSTALLED = ('site-packages', 'dist-packages')
STANDARD_LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ('stdlib', 'platstdlib'))
NOT_FOUND = 'not found'
ROOM = f'{OURS}.evaluation'
# These modules do not affect scores, so no digest of a protocol covers them. If one of them changes how identities are
# computed, increment REVISION in the module `identity`.
BOOKKEEPING = tuple(
    f'{ROOM}.{name}' for name in ('identity', 'protocol', 'sources', 'duplicates', 'overlap')
)


def outside_sources(cfg: Config) -> dict[str, str]:
    """Return a digest of each module that a config imports from outside the installed packages.

    Keys are the names of modules or Python files. If two files have the same name, the name of the second one includes its
    folder. Modules that these modules import are included. A missing module has the
    value NOT_FOUND. A config imports a module if `custom_imports` names it, if a `type` with dots names an object in it, or if
    a value is the path of a Python file.
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
            path = Path(value).resolve()
            name = Path(value).name
            if files.get(name, path) != path:
                name = f'{path.parent.name}/{name}'
            files[name] = path
    folders = sorted({str(path.parent) for path in files.values()})

    def find(name: str) -> Path | None:
        return files.get(name) or _outside_file(name, folders)

    missing = [name for name in imports if _is_missing(name, folders)]
    found = _closure([*direct, *files], find)
    found.update(dict.fromkeys(missing, NOT_FOUND))
    return dict(sorted(found.items()))


def changed_sources(before: Mapping[str, str] | None, now: Mapping[str, str] | None) -> str:
    """Return text that names the modules whose source code differs, or '' if none differs or `before` was not recorded."""
    if before is None:
        return ''
    now = now or {}
    every = sorted({*before, *now})
    changed = [name for name in every if before.get(name) != now.get(name)]
    return f'the source of {", ".join(changed)}' if changed else ''


def protocol_source(kind: type) -> str:
    """Return a digest of the source code that implements a protocol.

    The digest covers the modules that define the protocol's class and its base classes, and all modules of
    `mmairl.evaluation` that they import, directly or indirectly. Modules in BOOKKEEPING are not covered.
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
    """Return a digest of the modules of `mmairl.evaluation` with these names."""
    digests = {}
    for name in names:
        path = _package_file(f'{ROOM}.{name}')
        digests[name], _ = _source(path, name)
    return key_of(digests)


def package_source() -> str:
    """Return one digest of all Python files of the package."""
    digests = {}
    for path in PACKAGE.rglob('*.py'):
        inner = path.relative_to(PACKAGE)
        if '.mim' not in inner.parts:
            digests[inner.as_posix()], _ = _source(path, '')
    return key_of(digests)


def _closure(names: Iterable[str], find: Callable[[str], Path | None]) -> dict[str, str]:
    """Return the digests of these modules and of all modules that they import, directly or indirectly.

    Modules for which `find` returns None are skipped.
    """
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
    """Return the names of the packages that contain a module, followed by its own name.

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
    """Return the file of a module, or None if it belongs to Python, to an installed package or to VERSIONED."""
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
    """Find a module as a new process would, without importing its parent packages."""
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
    """Return the digest of a Python file, and the names of the modules and objects that it imports."""
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
    # A file cannot be parsed if it is compiled, written for another version of Python, or nested too deeply.
    except (SyntaxError, ValueError, RecursionError):
        return key_of(content.hex()), ()


def _essence(node: Any) -> Any:
    """Return a syntax tree as plain values, without docstrings.

    Empty fields are omitted, because their presence depends on the version of Python.
    """
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
    """Yield the names that a module imports.

    Imports inside functions and calls of `import_module` with a literal name are included.
    """
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
    """Return the full name of the module that a `from` statement imports from."""
    if not node.level:
        return node.module
    parts = package.split('.')
    above = parts[: len(parts) - node.level + 1]
    if node.module:
        above.append(node.module)
    return '.'.join(above)


def key_of(content: Any) -> str:
    """Return a digest of nested plain values, as 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
