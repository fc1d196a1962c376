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
