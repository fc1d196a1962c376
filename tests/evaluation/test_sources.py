"""Digests of the source code on which a result depends: modules outside the package, and protocols."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mmengine import Config

from mmairl.evaluation import sources
from mmairl.evaluation.identity import difference, features_key, identity_of
from mmairl.evaluation.protocol import settings_for
from mmairl.evaluation.sources import NOT_FOUND, changed_sources, outside_sources, package_source, protocol_source
from mmairl.registry import PROTOCOLS

FILES = {
    'a_method.py': 'import torch\nimport mmengine\nimport a_helper\n\ndef loss(x):\n    return a_helper.scale * x\n',
    'a_helper.py': 'scale = 1.0\n',
    'a_stranger.py': 'nothing = 1\n',
    'a_package/__init__.py': '',
    'a_package/head.py': 'from . import parts\nfrom .deep.more import value\n',
    'a_package/parts.py': 'def late():\n    from a_package import lazy\n',
    'a_package/lazy.py': 'import importlib\nimportlib.import_module("a_package.named")\n',
    'a_package/named.py': '',
    'a_package/unused.py': '',
    'a_package/deep/more.py': 'value = 1\n',
    'by_path/a_script.py': 'import a_neighbor\n',
    'by_path/a_neighbor.py': 'value = 1\n',
}
IMPORTS = dict(custom_imports=dict(imports=['a_method'], allow_failed_imports=False))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize('name, text, changed', [
    ('a_method.py', FILES['a_method.py'].replace('scale * x', 'scale * x * 0'), 'the source of a_method'),
    ('a_helper.py', 'scale = 0.0\n', 'the source of a_helper'),
    ('a_stranger.py', 'nothing = 2\n', ''),
    ('a_helper.py', '"""A docstring."""\n\nscale = 1.0  # a comment\n', ''),
    ('a_helper.py', 'scale = (', 'the source of a_helper'),
])  # fmt: skip
def test_source_follows_imported_modules(folder, name, text, changed):
    before = outside_sources(Config(IMPORTS))
    assert before.keys() == {'a_method', 'a_helper'}
    (folder / name).write_text(text)
    assert changed_sources(before, outside_sources(Config(IMPORTS))) == changed


def test_source_covers_the_modules_of_a_package(folder):
    sources = outside_sources(Config(dict(custom_imports=dict(imports='a_package.head'))))
    inside = {'head', 'parts', 'lazy', 'named', 'deep.more'}
    assert sources.keys() == {'a_package', *(f'a_package.{name}' for name in inside)}


def test_source_covers_dotted_types_and_files_by_path(folder):
    cfg = Config(
        dict(model=dict(type='a_method.Head', code=str(folder / 'by_path/a_script.py'), base='mmpretrain.ResNet'))
    )
    assert outside_sources(cfg).keys() == {'a_method', 'a_helper', 'a_script.py', 'a_neighbor'}


def test_files_of_the_same_name_are_all_covered(folder):
    for name in ('one', 'two'):
        (folder / name).mkdir()
        (folder / name / 'recipe.py').write_text(f'lr = "{name}"')
    recipes = dict(linear=str(folder / 'one/recipe.py'), finetune=str(folder / 'two/recipe.py'))
    assert outside_sources(Config(dict(recipes=recipes))).keys() == {'recipe.py', 'two/recipe.py'}


def test_missing_module_is_recorded_and_compared(folder):
    cfg = Config(dict(custom_imports=dict(imports=['a_missing'], allow_failed_imports=True)))
    before = outside_sources(cfg)
    assert before == {'a_missing': NOT_FOUND}
    (folder / 'a_missing.py').write_text('')
    assert changed_sources(before, outside_sources(cfg)) == 'the source of a_missing'


def test_installed_packages_are_left_out(folder):
    imports = dict(imports=['torch', 'sklearn', 'json', 'mmairl.models'])
    assert outside_sources(Config(dict(custom_imports=imports))) == {}


@pytest.fixture(scope='module')
def package(tmp_path_factory) -> Iterator[Path]:
    """Return the evaluation folder in a copy of the package. Digests are computed from this copy."""
    room = tmp_path_factory.mktemp('copy') / 'mmairl' / 'evaluation'
    ignored = shutil.ignore_patterns('__pycache__')
    shutil.copytree(sources.PACKAGE / 'evaluation', room, ignore=ignored)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sources, 'PACKAGE', room.parent)
        yield room


@contextmanager
def edited(path: Path) -> Iterator[None]:
    text = path.read_text()
    path.write_text(f'{text}\nEDITED = 1\n')
    yield
    path.write_text(text)


NAMES = ['knn', 'logreg', 'svm', 'linear', 'finetune']


@pytest.mark.parametrize('file, protocols', [
    ('knn', ['knn']), ('neighbors', ['knn', 'svm']), ('metrics', NAMES), ('features', NAMES), ('sets', NAMES),
    ('feature_protocol', ['knn', 'logreg', 'svm']), ('training_protocol', ['linear', 'finetune']),
    ('recipes', ['linear', 'finetune']), ('embed', []), ('identity', []),
])  # fmt: skip
def test_protocol_source_follows_its_implementation(package, file, protocols):
    def digests() -> dict[str, str]:
        return {name: protocol_source(PROTOCOLS.get(name)) for name in NAMES}

    before, whole = digests(), package_source()
    with edited(package / f'{file}.py'):
        assert [name for name, digest in digests().items() if digest != before[name]] == protocols
        assert package_source() != whole


def test_changed_protocol_reuses_stored_features(package, cfg):
    def measured() -> tuple[dict, str]:
        identity = identity_of(cfg, settings_for('knn'), 'pixels')
        return identity, features_key(identity, 'train', cfg.evaluation.train)

    before, stored = measured()
    with edited(package / 'knn.py'):
        after, key = measured()
    assert difference(before, after).startswith('sources.protocol (')
    assert key == stored
    with edited(package / 'features.py'):
        assert measured()[1] != stored


def test_change_of_outside_module_is_another_result(folder, cfg):
    cfg.merge_from_dict(IMPORTS)
    before = identity_of(cfg, settings_for('knn'), 'pixels')
    (folder / 'a_helper.py').write_text('scale = 0.0\n')
    after = identity_of(cfg, settings_for('knn'), 'pixels')
    assert difference(before, after).startswith('sources.imports.a_helper (')
    keys = {features_key(identity, 'train', cfg.evaluation.train) for identity in (before, after)}
    assert len(keys) == 2
