"""Compute digests of source code. Comments, docstrings and formatting do not change a digest."""

import ast
import hashlib
import importlib.util
import json
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from mmengine import Config

from mmairl.config import walk

PACKAGE = Path(__file__).resolve().parents[1]
# The sources on which the scores of a frozen network depend.
SCORING = ('data', 'evaluation', 'models/backbones.py')
INSTALLED = {'site-packages', 'dist-packages', 'mmairl'}


def outside_sources(cfg: Config) -> dict[str, str]:
    """Return a digest of each module that a config uses from outside the installed packages.

    A config uses a module if `custom_imports` names it, if a `type` with dots names an object in
    it, or if such a module imports it.
    """
    custom = (cfg.get('custom_imports') or {}).get('imports') or []
    waiting = [custom] if isinstance(custom, str) else list(custom)
    for keys, value in walk(cfg.to_dict()):
        if keys and keys[-1] == 'type' and isinstance(value, str) and '.' in value:
            waiting.append(value.rpartition('.')[0])
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path and name not in found and not INSTALLED & set(path.parts):
            found[name] = digest_of(path)
            waiting += imports_of(path, name)
    return dict(sorted(found.items()))


def _file_of(name: str) -> Path | None:
    """Return the file of a module, or None if it is built in, missing or not a module."""
    if name.partition('.')[0] in sys.stdlib_module_names:
        return None
    with suppress(ImportError, ValueError, AttributeError):
        spec = importlib.util.find_spec(name)
        return Path(spec.origin).resolve() if spec and spec.has_location else None
    return None


def imports_of(path: Path, name: str) -> list[str]:
    """Return the names that a module may import: modules, and objects as if they were modules."""
    package = name if path.stem == '__init__' else name.rpartition('.')[0]
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = '.' * node.level + (node.module or '')
            base = importlib.util.resolve_name(module, package) if node.level else module
            names += [base, *(f'{base}.{alias.name}' for alias in node.names)]
    return names


@cache
def source_of(*places: str) -> str:
    """Return one digest of the Python files and folders of the package at these places."""
    digests = {}
    for place in places:
        top = PACKAGE / place
        for path in [top] if top.suffix else top.rglob('*.py'):
            digests[str(path.relative_to(PACKAGE))] = digest_of(path)
    return key_of(digests)


def digest_of(path: Path) -> str:
    """Return a digest of the syntax tree of a Python file, without docstrings."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = None
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def key_of(content: Any) -> str:
    """Return a digest of nested plain values, as 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
