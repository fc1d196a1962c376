"""The progress that a study prints about its runs."""

from types import SimpleNamespace

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
