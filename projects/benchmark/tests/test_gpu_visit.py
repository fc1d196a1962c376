"""The visit to a GPU: priorities, limits, kills, wheels and the page."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from projects.benchmark.gpu_visit import wheels
from projects.benchmark.gpu_visit.plan import PLAN
from projects.benchmark.gpu_visit.results import failures, measured, read_rows
from projects.benchmark.gpu_visit.schedule import finished_jobs
from projects.benchmark.gpu_visit.wheels import missing_packages

ROOT = Path(__file__).parents[3]
# A visit of three jobs: one records numbers, one fails, one hangs and has a child.
SCRIPT = """
import os, subprocess, sys, time
from pathlib import Path
from projects.benchmark.gpu_visit import schedule
from projects.benchmark.gpu_visit.schedule import Context, Job, Visit

def works(context):
    for number in range(20):
        context.record(number=number)
        time.sleep(0.02)

def fails(context):
    context.record(number=0)
    1 / 0

def hangs(context):
    context.record(child=schedule.fork(lambda: time.sleep(600)))
    time.sleep(600)

schedule.import_everything = lambda: None
jobs = [Job('hangs', hangs, float(sys.argv[2]), side=True), Job('works', works, 60), Job('fails', fails, 60)]
out = Path(sys.argv[1])
Visit(jobs, Context('cpu', out, out / 'scratch', time.monotonic()), 600).run()
"""


def start(out: Path, limit: float) -> subprocess.Popen:
    command = [sys.executable, '-c', SCRIPT, str(out), str(limit)]
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def alive(process: int) -> bool:
    status = Path(f'/proc/{process}/stat')
    return status.exists() and status.read_text().rpartition(')')[2].split()[0] != 'Z'


def await_end(process: int) -> None:
    until = time.monotonic() + 30
    while alive(process):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_one_job_does_not_stop_another(tmp_path):
    output, _ = start(tmp_path, limit=3).communicate(timeout=120)
    rows = read_rows(tmp_path / 'results.jsonl')
    assert [row['number'] for row in measured(rows) if row['job'] == 'works'] == list(range(20))
    assert finished_jobs(tmp_path / 'results.jsonl') == {'works'}
    assert {row['job'] for row in failures(rows)} == {'fails', 'hangs'}
    (error,) = (row['error'] for row in rows if 'error' in row)
    assert error.startswith('ZeroDivisionError')
    assert output.index('Failures') < output.index('Numbers') and 'stopped after' in output
    page = (tmp_path / 'index.html').read_text()
    assert 'Failed jobs: fails, hangs' in page and 'ZeroDivisionError' in page
    (child,) = (row['child'] for row in rows if 'child' in row)
    await_end(child)


@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM], ids=str)
def test_killed_visit_loses_nothing_and_leaves_nothing(tmp_path, number):
    with start(tmp_path, limit=600) as visit:
        results = tmp_path / 'results.jsonl'
        until = time.monotonic() + 60
        wanted = random.randrange(4, 22)
        while not results.exists() or results.read_text().count('\n') < wanted:
            assert time.monotonic() < until
            time.sleep(0.01)
        visit.send_signal(number)
    lines = results.read_text().splitlines()
    assert len([json.loads(line) for line in lines]) >= wanted
    for child in (row['child'] for row in read_rows(results) if 'child' in row):
        await_end(child)


def test_jobs_of_the_plan_have_unique_names_and_limits():
    names = [job.name for job in PLAN]
    assert len(set(names)) == len(names)
    assert all(job.limit <= 200 for job in PLAN)


def test_wheels_leave_out_what_the_machine_has():
    frozen = 'rich==15.0.0\nscipy @ file:///x\nopencv-python-headless==5.0.0.93'
    names = {line.split('==')[0] for line in missing_packages(frozen)}
    assert names >= {
        'mmengine',
        'mmpretrain',
        'mmcv-lite',
        'msgspec',
        'pytest',
        'addict',
        'lightly',
    }
    assert 'opencv-python' not in names, 'the headless package has the same module'
    assert not any(
        name.startswith(('torch', 'nvidia', 'triton', 'rich', 'scipy')) for name in names
    )


@pytest.mark.parametrize('python, name', [('3.10', 'older'), ('3.12', 'newer')])
def test_wheels_are_those_of_the_machines_python(monkeypatch, python, name):
    requires = ["older; python_version < '3.12'", "newer; python_version >= '3.12'"]
    package = SimpleNamespace(version='1', requires=requires)
    monkeypatch.setattr(wheels, 'distribution', lambda name: package)
    names = {line.split('==')[0] for line in missing_packages(python=python)}
    assert names & {'older', 'newer'} == {name}


@pytest.mark.slow
@pytest.mark.parametrize('device', ['cpu', 'software'])
def test_visit_is_rehearsed(tmp_path, device, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tests/softgpu'))
    import build_runtime

    if device == 'software' and build_runtime.missing():
        pytest.skip(build_runtime.missing())
    command = [sys.executable, '-m', 'projects.benchmark.gpu_visit', '--device', device]
    jobs = ['machine', 'probe', 'cpu cases', 'case heads', 'step fast', 'waits', 'other libraries']
    settings = ['--patience', '8', '--seconds', '1000', '--out', str(tmp_path), '--only', *jobs]
    done = subprocess.run(
        [*command, *settings], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert finished_jobs(tmp_path / 'results.jsonl') == set(jobs), done.stdout[-3000:]
