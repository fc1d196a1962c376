"""The tables of registered classes list every class, with the module that defines it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.errors import raises_code
from mmengine import registry as parent

from mmairl import registry
from mmairl.registry import BOXES

PACKAGE = Path(registry.__file__).parent


def registered() -> Iterator[tuple[str, str, str]]:
    """Yield the registry, module and class of each `register_module` decorator in the package."""
    for path in PACKAGE.rglob('*.py'):
        module = '.'.join(['mmairl', *path.relative_to(PACKAGE).with_suffix('').parts])
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, 'decorator_list', []):
                if isinstance(decorator, ast.Call) and getattr(decorator.func, 'attr', '') == 'register_module':
                    name = decorator.args[0].value if decorator.args else node.name
                    yield decorator.func.value.id, module, name


def test_tables_name_every_registered_class():
    in_tables = {
        (name, module, key)
        for name, child in vars(registry).items()
        if isinstance(child, registry.Registry)
        for key, module in child.module_of.items()
    }
    assert set(registered()) <= in_tables


@pytest.mark.parametrize('box', BOXES, ids=lambda box: box.name)
def test_each_name_in_a_table_is_registered(box):
    for name in box.module_of:
        assert box.get(name).__module__ == box.module_of[name]


def test_unknown_class_is_not_an_attribute():
    with pytest.raises(AttributeError, match='NoSuchHead'):
        registry.class_of('mmairl.models', 'NoSuchHead')


@pytest.mark.parametrize('name, advice', [('NNCLRHead', 'custom_imports'), ('ContrastiveHed', "'ContrastiveHead'")])
def test_unregistered_class_names_the_way_to_import_it(name, advice):
    with raises_code('unknown-class', advice):
        registry.MODELS.build(dict(type=name))


def test_lookup_finds_classes_of_mmengine():
    assert registry.HOOKS.peek('mmengine.IterTimerHook') is registry.HOOKS.peek('IterTimerHook') is not None


def test_lookup_imports_no_other_package():
    assert registry.MODELS.peek('mmdet.NoSuchDetector') is None
    assert 'mmdet' not in parent.MODELS.children or parent.MODELS.children['mmdet'].get('NoSuchDetector') is None
