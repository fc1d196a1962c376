"""The package has layers and no import cycles at the top of its modules, and it imports no tool and no project."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The layers are listed from the bottom to the top. A part (a folder or module of the package) may import its own layer and
# lower layers.
LAYERS = [
    ['registry', 'errors', 'signals', 'io', 'randomness', 'config', 'hardware'],
    ['data'],
    ['models'],
    ['checkpoints'],
    ['engine'],
    ['evaluation', 'analysis', 'transfer'],
    ['report'],
    ['study'],
    ['apis'],
    ['cli', '__main__'],
]
FILES = [file for file in (ROOT / 'mmairl').rglob('*.py') if file.name != '__init__.py']
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports at its top. Imports within functions serve single calls."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
        else:
            continue
        yield from names


@cache
def imports() -> dict[str, set[str]]:
    """Return the imports of each module. A package's `__init__` only exports names, so it is left out."""
    names = {'.'.join(file.relative_to(ROOT).with_suffix('').parts): file for file in FILES}
    return {name: own(imported(file)) - {name} for name, file in names.items()}


def own(names: Iterable[str]) -> set[str]:
    return {name for name in names if name.split('.')[0] in ('mmairl', 'tools', 'projects')}


def part(module: str) -> str:
    return module.split('.')[1]


def test_no_import_points_upward():
    assert {part(name) for name in imports()} <= LAYER.keys()
    upward = [
        f'{name} imports {other}'
        for name, others in imports().items()
        for other in others & imports().keys()
        if LAYER[part(other)] > LAYER[part(name)]
    ]
    assert not upward


def test_package_imports_no_tool_and_no_project():
    assert not [
        (name, other)
        for name, others in imports().items()
        for other in others
        if other[:6] != 'mmairl'
    ]


def required(names: Iterable[str]) -> set[str]:
    """Return the named distributions and those that they require without extras."""
    found, open_names = set(), set(names)
    while open_names:
        found |= open_names
        lines = [line for name in open_names for line in requires(name) or ()]
        open_names = {distribution(line) for line in lines if ';' not in line} - found
    return found


def distribution(requirement: str) -> str:
    name = re.match(r'[\w.-]+', requirement)[0]
    return re.sub('[-_.]+', '-', name).lower()


def test_top_imports_are_installed_with_the_core():
    """`make demo` and the wheel install no more. `transfer` has requirements of its own."""
    files = [ROOT / 'requirements' / name for name in ('runtime.txt', 'openmmlab.txt')]
    lines = [line for file in files for line in file.read_text().splitlines()]
    core = required(distribution(line) for line in lines if line and line[0] != '#')
    without_transfer = [file for file in FILES if file.parent.name != 'transfer']
    modules = {name.split('.')[0] for file in without_transfer for name in imported(file)}
    providers = packages_distributions()
    missing = [
        name
        for name in modules - sys.stdlib_module_names - {'mmairl'}
        if not core & set(map(distribution, providers[name]))
    ]
    assert not missing


def test_checkpoint_readers_import_neither_hooks_nor_runner():
    readers = [name for name in imports() if part(name) in ('evaluation', 'analysis', 'transfer')]
    hooks = ('mmairl.engine.hooks', 'mmairl.engine.runner')
    assert not [
        (name, other) for name in readers for other in imports()[name] if other.startswith(hooks)
    ]


def test_no_import_cycles():
    """Repeatedly remove modules that import no remaining module (Kahn's algorithm). If modules remain, there is a cycle."""
    remaining = {name: others & imports().keys() for name, others in imports().items()}
    while free := {name for name, others in remaining.items() if not others & remaining.keys()}:
        remaining = {name: others for name, others in remaining.items() if name not in free}
    assert not remaining
