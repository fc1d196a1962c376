import json

import pytest

from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError


def write_start(work_dir, name, values, end=''):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [json.dumps({'loss': value, 'step': step}) for step, value in values.items()]
    (folder / 'scalars.json').write_text('\n'.join(lines) + end)


def test_a_resumed_run_is_one_curve_and_a_step_that_was_repeated_counts_once(tmp_path):
    write_start(tmp_path, 'first', {10: 10, 20: 20, 30: 30}, end='\n{"loss": 0.1, "st')  # killed while writing a line
    write_start(tmp_path, 'second', {30: 31, 40: 41})
    assert read_scalars(tmp_path) == {'loss': ([10, 20, 30, 40], [10, 20, 31, 41])}


def test_a_folder_without_a_run_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r'no \*/vis_data/scalars.json under'):
        read_scalars(tmp_path)
