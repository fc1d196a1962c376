"""Test that golden probes and planted faults still find the functions, files and snippets that they name."""

from pathlib import Path

import pytest

from projects.benchmark import golden_probes
from projects.benchmark.goldens import compare, flatten
from projects.benchmark.mutations import FAULTS, file_with, files_named

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.setattr(golden_probes, 'TREE', ROOT)


@pytest.mark.parametrize('name', golden_probes.PLACES)
def test_probe_function_is_found(name):
    assert golden_probes.lookup(name) is not None


@pytest.mark.parametrize('name', [*golden_probes.CONFIGS, *golden_probes.METHODS])
def test_probe_config_is_found(name):
    assert golden_probes.find_file(f'{name}.py').is_file()


@pytest.mark.parametrize('name', golden_probes.TOOLS)
def test_probe_tool_is_found(name):
    assert golden_probes.tool(name)


@pytest.mark.parametrize('fault', FAULTS, ids=lambda fault: fault.name)
def test_fault_applies(fault):
    path = file_with(ROOT, fault.old)
    compile(path.read_text().replace(fault.old, fault.new), str(path), 'exec')
    assert files_named(ROOT, fault.tests)


def test_flatten_names_each_value():
    assert dict(flatten(dict(a=[1, dict(b=2)], c={}))) == {'a.0': 1, 'a.1.b': 2, 'c': {}}


@pytest.mark.parametrize('probe, key, differs', [
    ('train_one/mocov2', 'losses.0', True),
    ('tools/help_train', 'help', False),
    ('tools/help_train', 'code', True),
])  # fmt: skip
def test_only_allowed_differences_pass(probe, key, differs):
    line, is_different = compare(probe, {key: 1, 'other': 3}, {key: 2, 'other': 3})
    assert is_different == differs and ('DIFFERS' in line) == differs


def test_value_missing_on_one_side_differs():
    line, is_different = compare('train_one/mocov2', {'losses.0': 1}, {})
    assert is_different and "1 -> 'nothing'" in line
