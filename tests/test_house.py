"""The package has layers and no import cycles.

Tools and projects import the package, but the package does not import them.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The layers are listed from the bottom to the top. A room (a folder or module of the package) may
# import its own layer and lower ones.
FLOORS = [
    ['registry', 'errors', 'signals', 'io', 'randomness', 'config', 'hardware'],
    ['data'],
    ['models'],
    ['checkpoints'],
    ['engine'],
    ['evaluation'],
    ['analysis', 'transfer'],
    ['report'],
    ['study'],
    ['apis'],
    ['cli', '__main__'],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


@cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text())))


def imported(file: Path) -> Iterator[str]:
    """Yield the modules of this repository that a file imports, including imports within functions."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
        else:
            continue
        yield from (name for name in names if name.split('.')[0] in ('mmairl', 'tools', 'projects'))


@cache
def modules() -> dict[str, Path]:
    files = sorted((ROOT / 'mmairl').rglob('*.py'))
    return {'.'.join(file.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__'): file for file in files}


@cache
def arrows() -> dict[str, set[str]]:
    """Return the imports of each module. A package's `__init__` only re-exports names, so it is left out."""
    names = {name for name, file in modules().items() if file.name != '__init__.py'}
    return {name: names.intersection(imported(modules()[name])) - {name} for name in names}


def room(module: str) -> str:
    return module.split('.')[1]


def test_every_room_has_a_floor():
    assert {room(name) for name in arrows()} <= FLOOR.keys()


def test_no_import_points_upward():
    up = [
        f'{name} imports {other}'
        for name, others in arrows().items()
        for other in others
        if FLOOR[room(other)] > FLOOR[room(name)]
    ]
    assert not up


def test_ground_floor_imports_no_room():
    ground = [name for name in arrows() if FLOOR[room(name)] == 0]
    assert not [name for name in ground if any(FLOOR[room(other)] for other in arrows()[name])]


@pytest.mark.parametrize('name', ['evaluation', 'analysis', 'transfer', 'study', 'report'])
def test_checkpoint_readers_import_no_training_hooks(name):
    readers = [one for one in arrows() if room(one) == name and not one.endswith('.online')]
    assert not [one for one in readers if any(other.startswith('mmairl.engine.hooks') for other in arrows()[one])]


def test_no_import_cycles():
    """Repeatedly remove modules that import no remaining module (Kahn's algorithm). If modules remain, there is a cycle."""
    remaining = {name: set(others) for name, others in arrows().items()}
    while free := {name for name, others in remaining.items() if not others & remaining.keys()}:
        remaining = {name: others for name, others in remaining.items() if name not in free}
    assert not remaining


def test_package_names_no_tool_and_no_project():
    for name, file in modules().items():
        assert not [one for one in imported(file) if not one.startswith('mmairl')], name
        strings = [node.value for node in nodes(file) if isinstance(node, ast.Constant)]
        started = [one for one in strings if isinstance(one, str) and one.startswith('tools/') and ' ' not in one]
        assert not started, f'{name} names {started[0]}'


@pytest.mark.parametrize('folder', ['mmairl', 'tools'])
def test_package_and_tools_import_no_project(folder):
    """Projects are not part of the wheel, so an import of them would fail there."""
    importing = [
        f'{file.relative_to(ROOT)} imports {name}'
        for file in sorted((ROOT / folder).rglob('*.py'))
        for name in imported(file)
        if name.split('.')[0] == 'projects'
    ]
    assert not importing
