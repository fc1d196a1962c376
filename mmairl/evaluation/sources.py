"""Compute digests of source code. Comments, docstrings and formatting do not change a digest."""

import ast
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mmengine import Config

from mmairl.config import walk

PACKAGE = Path(__file__).resolve().parents[1]
# The sources on which the scores of a frozen network depend.
SCORING = ('data', 'evaluation', 'models/backbones.py')
INSTALLED = ('site-packages', 'dist-packages')


def outside_sources(cfg: Config) -> dict[str, str]:
    """Return a digest of each module that a config uses from outside the installed packages.

    A config uses a module if `custom_imports` names it, if a `type` with dots names an object in
    it, or if such a module imports it.
    """
    custom = (cfg.get('custom_imports') or {}).get('imports') or ()
    waiting = [custom] if isinstance(custom, str) else list(custom)
    for keys, value in walk(cfg.to_dict()):
        if keys and keys[-1] == 'type' and isinstance(value, str) and '.' in value:
            waiting += [value, value.rpartition('.')[0]]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = _outside_file(name)
        if path is not None and name not in found:
            found[name] = digest_of(path)
            waiting += _imports(path, name)
    return dict(sorted(found.items()))


@cache
def feature_source() -> str:
    """Return one digest of the parts of mmairl that read images and compute and score features."""
    return _digest_of_all(SCORING)


@cache
def package_source() -> str:
    """Return one digest of all Python files of the package."""
    return _digest_of_all(['.'])


def _digest_of_all(places: Iterable[str]) -> str:
    digests = {}
    for place in places:
        top = PACKAGE / place
        for path in top.rglob('*.py') if top.is_dir() else [top]:
            if '.mim' not in path.parts:
                digests[path.relative_to(PACKAGE).as_posix()] = digest_of(path)
    return key_of(digests)


def digest_of(path: Path) -> str:
    """Return a digest of the syntax tree of a Python file, without docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(getattr(node, 'body', None), list):
            node.body = [part for part in node.body if not _is_text(part)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _outside_file(name: str) -> Path | None:
    """Return the file of a module, or None if it is installed, built in or not a module."""
    top = name.partition('.')[0]
    if top in sys.stdlib_module_names or top == 'mmairl':
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not spec.origin or not spec.origin.endswith('.py'):
        return None
    path = Path(os.path.abspath(spec.origin))
    return None if set(INSTALLED) & set(path.parts) else path


def _imports(path: Path, name: str) -> list[str]:
    """Return the names that a module may import: modules, and objects as if they were modules."""
    package = name if path.stem == '__init__' else name.rpartition('.')[0]
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split('.')[: len(package.split('.')) - node.level + 1]
            base = '.'.join([*above, node.module or '']).strip('.') if node.level else node.module
            names += [base, *(f'{base}.{alias.name}' for alias in node.names)]
    return names


def key_of(content: Any) -> str:
    """Return a digest of nested plain values, as 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
