"""Reading, changing and writing configs, and names such as `mmairl::NAME.py`."""

import os
import subprocess
import sys

import pytest
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.config import config_path, config_text, flat, load_config

NAME = 'mmairl::mocov2plus_r50_200e.py'


def test_base_may_be_a_name(tmp_path):
    (tmp_path / 'mine.py').write_text(f"_base_ = '{NAME}'\ntotal_batch_size = 8\n")
    cfg = load_config(tmp_path / 'mine.py', {'optim_wrapper.optimizer.lr': 0.06})
    expected = load_config(NAME)
    assert (cfg.total_batch_size, cfg.optim_wrapper.optimizer.lr) == (8, 0.06)
    assert cfg.model == expected.model and expected.total_batch_size == 1024


def test_yaml_config_reads_numbers_and_tuples(tmp_path):
    path = tmp_path / 'mine.yaml'
    path.write_text(
        f"_base_: '{NAME}'\noptim_wrapper: {{optimizer: {{lr: 1e-3, betas: !!python/tuple [0.9, 1]}}}}\n"
    )
    optimizer = load_config(path).optim_wrapper.optimizer
    assert optimizer.lr == 1e-3 and optimizer.betas == (0.9, 1)
    (tmp_path / 'empty.yaml').write_text('')
    assert load_config(tmp_path / 'empty.yaml').to_dict() == {}


def test_modules_next_to_a_config_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / 'own_module_of_this_test.py').write_text('')
    (tmp_path / 'mine.py').write_text(
        "custom_imports = dict(imports=['own_module_of_this_test'])\n"
    )
    monkeypatch.setenv('PYTHONPATH', os.environ.get('PYTHONPATH', ''))
    load_config(tmp_path / 'mine.py')
    # The processes of a study find the modules, too.
    command = [sys.executable, '-c', 'import own_module_of_this_test']
    subprocess.run(command, check=True, cwd='/')


def test_written_config_equals_the_original(tmp_path):
    values = dict(
        words="it's {a: 1} # b\nc", long='word ' * 60, numbers=[1, 1e-5, -2.5, True, None], pair=(1, (2,)),
        nested={'a b': [dict(type='x')], 3: 'three', 'class': 1}, empty=[{}, [], ()],
    )  # fmt: skip
    path = tmp_path / 'written.yaml'
    path.write_text(config_text(Config(values)))
    assert load_config(path).to_dict() == values
    full = load_config(NAME)
    path.write_text(config_text(full))
    assert load_config(path).to_dict() == full.to_dict()


def test_flat_keeps_lists_without_dictionaries():
    assert flat(dict(a=dict(b=(1, 2)), c=[dict(d=3)])) == {'a.b': [1, 2], 'c.0.d': 3}


@pytest.mark.parametrize(
    'path, options, code',
    [
        ('no_such.py', {}, 'no-config'),
        ('mmairl::mocov2plus_r50_20e.py', {}, 'no-config'),
        ('mine.txt', {}, ''),
        ('broken.py', {}, ''),
        (NAME, {'modle.depth': 1}, 'unknown-key'),
        (NAME, {'mocov2_view': 1}, 'config-variable'),
        (NAME, {'param_scheduler.9.end': 1}, ''),
        ('misspelled.py', {}, 'unknown-key'),
    ],
)
def test_wrong_config_is_an_error(tmp_path, monkeypatch, path, options, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'mine.txt').touch()
    (tmp_path / 'broken.py').write_text('a = (')
    (tmp_path / 'misspelled.py').write_text('optim_wraper = dict()')
    with raises_code(code):
        load_config(path, options)


def test_misspelled_name_gets_a_suggestion():
    with raises_code('no-config', "did you mean 'mocov2plus_r50_200e.py'"):
        config_path('mmairl::mocov2plus_r50_20e.py')
