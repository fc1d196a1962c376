"""Curves of a run are read from the files of its starts."""

import json

from harness.errors import raises_code

from mmairl.engine.curves import read_run_config, read_scalars


def write_start(work_dir, name, values, end=''):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    lines = [json.dumps({'loss': value, 'step': step}) for step, value in values.items()]
    (folder / 'scalars.json').write_text('\n'.join(lines) + end)
    (work_dir / name / 'config.json').write_text(json.dumps(dict(name=name)))


def test_resumed_run_is_one_curve(tmp_path):
    # The last line is incomplete because the run was killed while it wrote the line.
    write_start(tmp_path, 'a', {10: 10, 20: 20, 30: 30}, end='\n{"loss": 0.1, "st')
    write_start(tmp_path, 'b', {30: 31, 40: 41})
    assert read_scalars(tmp_path) == {'loss': ([10, 20, 30, 40], [10, 20, 31, 41])}
    assert read_run_config(tmp_path)['name'] == 'b'


def test_folder_without_a_run_raises(tmp_path):
    assert read_run_config(tmp_path) == {}
    with raises_code('no-curves'):
        read_scalars(tmp_path)
