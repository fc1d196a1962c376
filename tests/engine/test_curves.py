"""Curves and configs are read from files of runs, which may be damaged or untrusted."""

import json

import pytest
from harness.errors import raises_code

from mmairl.engine.curves import read_run_config, read_scalars


def write_start(work_dir, name, values, end=''):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [json.dumps({'loss': value, 'step': step}) for step, value in values.items()]
    (folder / 'scalars.json').write_text('\n'.join(lines) + end)


def test_resumed_run_is_one_curve(tmp_path):
    # The last line is incomplete because the run was killed while it wrote the line.
    write_start(tmp_path, 'first', {10: 10, 20: 20, 30: 30}, end='\n{"loss": 0.1, "st')
    write_start(tmp_path, 'second', {30: 31, 40: 41})
    assert read_scalars(tmp_path) == {'loss': ([10, 20, 30, 40], [10, 20, 31, 41])}


def test_folder_without_a_run_raises(tmp_path):
    with raises_code('no-curves'):
        read_scalars(tmp_path)


@pytest.mark.parametrize(
    'line',
    ['[1]', '5', '"text"', 'null', '{"step": [1], "loss": 1}', '{"step": "a", "loss": 1}'],
)
def test_line_of_another_type_raises(tmp_path, line):
    write_start(tmp_path, 'first', {10: 1.0}, end=f'\n{line}')
    with raises_code('wrong-content', match='line 2'):
        read_scalars(tmp_path)


@pytest.mark.parametrize('number', ['Infinity', '-1', '1' + '0' * 400])
def test_step_or_value_out_of_range_raises(tmp_path, number):
    write_start(tmp_path, 'first', {10: 1.0}, end=f'\n{{"step": {number}, "loss": 1}}')
    with raises_code('wrong-content'):
        read_scalars(tmp_path)


def test_numbers_that_python_rejects_are_skipped(tmp_path):
    write_start(tmp_path, 'first', {10: 1.0}, end=f'\n{"9" * 5000}\n{"[" * 100_000}')
    assert read_scalars(tmp_path) == {'loss': ([10], [1.0])}


def test_diverged_run_has_nan_in_its_curve(tmp_path):
    write_start(tmp_path, 'first', {10: float('nan')})
    steps, losses = read_scalars(tmp_path)['loss']
    assert steps == [10]
    assert losses[0] != losses[0]


def test_link_out_of_a_work_dir_is_an_error(tmp_path):
    write_start(tmp_path / 'run', 'first', {10: 1.0})
    (tmp_path / 'settings.py').write_text('password = 1')
    folder = tmp_path / 'run' / 'first' / 'vis_data'
    (folder / 'config.py').symlink_to(tmp_path / 'settings.py')
    with raises_code('link-leads-out'):
        read_run_config(tmp_path / 'run')
    (tmp_path / 'run' / 'second').symlink_to(tmp_path)
    (tmp_path / 'vis_data').mkdir()
    (tmp_path / 'vis_data' / 'scalars.json').write_text('{}')
    with raises_code('link-leads-out'):
        read_scalars(tmp_path / 'run')
