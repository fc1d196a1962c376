"""Importing mmairl.registry makes every registered class findable and has no other effect."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from harness.errors import raises_code

from mmairl import registry

PACKAGE = Path(registry.__file__).parent
REGISTRIES = {
    name: value for name, value in vars(registry).items() if isinstance(value, registry.Registry)
}


def registered() -> set[tuple[str, str]]:
    """Return the registry and the class of each `register_module` decorator in the package.

    Configs of detectors list the modules of `transfer` in `custom_imports`.
    """
    found = set()
    for path in set(PACKAGE.rglob('*.py')) - set(PACKAGE.glob('transfer/*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            for call in getattr(node, 'decorator_list', []):
                if (
                    isinstance(call, ast.Call)
                    and getattr(call.func, 'attr', '') == 'register_module'
                ):
                    found.add((call.func.value.id, call.args[0].value if call.args else node.name))
    return found


def test_every_registered_class_is_found():
    assert len(registered()) > 50
    missing = [(name, kind) for name, kind in registered() if REGISTRIES[name].get(kind) is None]
    assert not missing, 'add the module to the locations in mmairl/registry.py'


def test_scope_is_found_without_importing_mmairl():
    code = (
        'import sys; from mmengine.registry import MODELS\n'
        'before = set(sys.modules); import mmairl.registry\n'
        'heavy = {"mmpretrain", "timm", "mmairl.engine", "mmairl.models"} & set(sys.modules)\n'
        'print(heavy, MODELS.get("mmairl.Siamese").__name__)'
    )
    process = subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip().splitlines()[-1] == 'set() Siamese'


@pytest.mark.parametrize(
    'name, hint', [('NNCLRHead', 'custom_imports'), ('ContrastiveHed', "'ContrastiveHead'")]
)
def test_unknown_class_is_one_line_with_advice(name, hint):
    with raises_code('unknown-class', hint):
        registry.MODELS.build(dict(type=name))


def test_wrong_argument_is_one_line():
    with raises_code('bad-value', 'ContrastiveHead'):
        registry.MODELS.build(dict(type='ContrastiveHead', temperatur=1))


def test_class_of_mmengine_is_found_without_a_prefix():
    assert (
        registry.HOOKS.get('IterTimerHook')
        is registry.HOOKS.get('mmengine.IterTimerHook')
        is not None
    )
