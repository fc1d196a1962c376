"""Every built-in study is planned at the scale demo."""

import time
from pathlib import Path

import pytest

from mmairl.errors import UserError
from mmairl.study.commands import prepare_study
from mmairl.study.runs import plan_runs

STUDIES = sorted(Path(__file__).parents[2].glob('configs/studies/[!_]*.yaml'))
ERRORS = {'release': 'no-checkpoint'}  # It evaluates files that each user must download.


@pytest.mark.parametrize('path', STUDIES, ids=lambda path: path.stem)
def test_study_plans_at_demo(path, tmp_path):
    began = time.process_time()
    try:
        prepared = prepare_study(path, 'demo', out=tmp_path)
    except UserError as error:
        assert error.code == ERRORS[path.stem]
        return
    runs = plan_runs(prepared)
    assert path.stem not in ERRORS and len(runs) > len(prepared.study.rows)
    assert len({run.folder for run in runs}) == len(runs)
    assert time.process_time() - began < 3  # 0.1 to 1.4 s on an idle core
