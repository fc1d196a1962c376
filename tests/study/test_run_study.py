"""The progress that a study prints about its runs, and the runs that its analyses use."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mmairl.study import run_study


def test_finished_run_states_the_time_left(monkeypatch):
    runs = [SimpleNamespace(name=name, stale_reason='') for name in 'abc']
    clock = iter([0.0, 60.0])
    monkeypatch.setattr(run_study, 'time', SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(run_study, 'unfinished', lambda runs: runs)

    def execute(runs, jobs, devices, report):
        report(runs[0], 'running')
        report(runs[0], 'done')

    monkeypatch.setattr(run_study, 'execute', execute)
    lines: list[str] = []
    run_study.complete_runs(runs, 1, 1, lines.append)
    assert lines == ['0 of 3 runs are finished', '[0/3] a: running', '[1/3] a: done, about 0:02:00 left']


@pytest.mark.parametrize('unfinished, expected', [((), [['own', 'external']]), (('external',), [])])
def test_look_uses_the_first_run_of_each_row(monkeypatch, tmp_path, unfinished, expected):
    """The seeds of a row with external checkpoints can differ from the seeds of the study."""
    (tmp_path / 'last_checkpoint').touch()
    runs = []
    for name, seed, part in (
        ('own', 0, 'published'),
        ('own', 0, 'compared'),
        ('own', 1, 'compared'),
        ('external', 7, 'compared'),
    ):
        done = name not in unfinished
        row = SimpleNamespace(name=name)
        runs.append(SimpleNamespace(row=row, seed=seed, part=part, done=done, folder=tmp_path))
    look = SimpleNamespace(rows=('own', 'external'), instrument='norms')
    used = []
    monkeypatch.setattr(run_study, 'instrument_page', lambda study, configs, look, chosen, folder: used.append(chosen))
    run_study.look_into(SimpleNamespace(look=[look]), {}, runs, Path('out'))
    assert [list(chosen) for chosen in used] == expected
    assert all(chosen['own'] is runs[1] for chosen in used)


def test_look_at_a_run_without_weights_is_left_out(tmp_path):
    """The branches of a collapsed trunk are finished without having been trained."""
    run = SimpleNamespace(row=SimpleNamespace(name='own'), part='compared', done=True, folder=tmp_path)
    look = SimpleNamespace(rows=('own',), instrument='norms')
    assert run_study.look_into(SimpleNamespace(look=[look]), {}, [run], Path('out')) == []


def test_look_at_a_row_without_runs_is_left_out():
    look = SimpleNamespace(rows=('own', 'absent'), instrument='norms')
    assert run_study.look_into(SimpleNamespace(look=[look]), {}, [], Path('out')) == []
