import pytest

from mmairl.errors import UserError
from mmairl.report.scalars import read_scalars


def test_reads_the_latest_run_and_survives_a_cut_last_line(work_dir):
    curves = read_scalars(work_dir)
    assert curves['loss'] == ([10 * i for i in range(1, 8)], [5 / i for i in range(1, 8)])
    assert set(curves) == {'loss', 'instance_accuracy', 'lr', 'momentum'}


def test_no_run_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r'no \*/vis_data/scalars.json under'):
        read_scalars(tmp_path)


def test_a_resumed_run_is_one_curve_and_what_was_done_again_counts_once(tmp_path):
    for start, steps in dict(first=[10, 20, 30], second=[30, 40]).items():
        folder = tmp_path / start / 'vis_data'
        folder.mkdir(parents=True)
        (folder / 'scalars.json').write_text(
            '\n'.join(f'{{"loss": {step + (start == "second")}, "step": {step}}}' for step in steps)
        )
    assert read_scalars(tmp_path)['loss'] == ([10, 20, 30, 40], [10, 20, 31, 41])
