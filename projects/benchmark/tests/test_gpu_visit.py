"""Test projects.benchmark.gpu_visit: the choice and time limits of jobs, killed commands, wheels and the results page."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from projects.benchmark.gpu_visit import __main__ as visit
from projects.benchmark.gpu_visit import schedule, wheels
from projects.benchmark.gpu_visit.plan import PLAN
from projects.benchmark.gpu_visit.results import failures, limit, measured, read_rows, summary
from projects.benchmark.gpu_visit.schedule import Context, Job, Visit, choose, finished_jobs, fork
from projects.benchmark.gpu_visit.wheels import missing_packages

ROOT = Path(__file__).parents[3]
# This program runs three jobs: `works` records numbers, `fails` raises an error, and `hangs` sleeps and has a child process.
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
    assert 'Failed: hangs, fails.' in page and 'ZeroDivisionError' in page
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


def test_summary_names_every_job_without_a_result():
    rows = [
        dict(job='visit', event='imported', device='cpu', jobs=['a', 'b', 'c', 'd']),
        *[dict(job=job, event='start') for job in 'abc'],
        dict(job='a', status=1),
        dict(job='b', status=0),
    ]
    text = summary(rows)
    assert text.startswith('1 of 4 jobs succeeded. Failed: a. Unfinished: c. Not started: d.')
    assert 'rehearsal' in text
    rows += [dict(job='a', event='start'), dict(job='a', status=0)]
    assert 'Failed' not in summary(rows), (
        'a job that failed first and then succeeded is listed as failed'
    )


def test_limit_is_the_slower_of_copies_and_products():
    rows = [
        dict(job='probe', copy_terabytes_per_second=3.0),
        dict(job='probe', product='bfloat16', teraflops=800),
    ]
    assert limit(rows, 'fast') == pytest.approx(2000, rel=0.01)
    assert limit(rows, 'fast 512') == limit(rows, 'fast')
    rows[1]['teraflops'] = 65.2
    assert limit(rows, 'fast') == pytest.approx(1000)
    assert limit(rows, 'compile') is None
    assert limit([*rows, dict(job='visit', device='cpu')], 'fast') is None, (
        'a speed limit is shown for a rehearsal at tiny sizes'
    )


def test_cut_off_line_loses_no_other(tmp_path):
    results = tmp_path / 'results.jsonl'
    results.write_text('{"seconds": 1.0, "job": "a", "status": 0}\n{"seconds": 2.0, "jo')
    start(tmp_path, limit=1).communicate(timeout=120)
    assert finished_jobs(results) == {'a', 'works'}
    assert next(row['event'] for row in read_rows(results) if 'event' in row) == 'imported'


def test_needed_jobs_run_again():
    """The job 'draw' runs again for 'run', because the files that it wrote may be missing on a new machine."""
    jobs = [Job('draw', print, 1), Job('run', print, 1, needs='draw'), Job('other', print, 1)]

    def names(done: set[str], only: list[str] | None = None) -> list[str]:
        return [job.name for job in choose(jobs, done, only)]

    assert names(set()) == ['draw', 'run', 'other']
    assert names({'draw', 'other'}) == ['draw', 'run']
    assert names({'draw', 'run'}) == ['other']
    assert names(set(), ['run']) == ['draw', 'run']


def test_jobs_import_for_themselves_if_forks_fail(tmp_path, monkeypatch):
    commands = []

    class Started:
        def __init__(self, command: list[str], **_: object) -> None:
            commands.append(command)
            self.pid = fork(lambda: 0)

    monkeypatch.setattr(schedule.subprocess, 'Popen', Started)

    def no_cuda(context: Context) -> None:
        raise RuntimeError('CUDA cannot start in a fork')

    probe = Job('probe', no_cuda, 60)
    gpu_run = Visit([probe], Context('cpu', tmp_path, tmp_path, time.monotonic()), 600)
    gpu_run.start(probe)
    gpu_run.check_forks(probe)
    while gpu_run.running:
        gpu_run.poll()
    assert commands[0][commands[0].index('--job') + 1] == 'probe'
    ends = [row['status'] for row in read_rows(tmp_path / 'results.jsonl') if 'status' in row]
    assert ends == [1, 0]


def test_killed_installation_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, 'SCRATCH', tmp_path / 'scratch')
    wheels_folder = tmp_path / 'wheels'
    wheels_folder.mkdir()
    site = tmp_path / 'scratch/site'
    with pytest.raises(SystemExit, match='--prepare'):
        visit.install(wheels_folder, site)
    (wheels_folder / 'a-1-py3-none-any.whl').write_text('no wheel')
    with pytest.raises(subprocess.CalledProcessError):
        visit.install(wheels_folder, site)
    assert not site.exists()
    monkeypatch.setattr(subprocess, 'run', lambda *args, **kwargs: None)
    visit.install(wheels_folder, site)
    assert site.is_dir()


def test_jobs_of_the_plan_have_unique_names_and_limits():
    names = [job.name for job in PLAN]
    assert len(set(names)) == len(names)
    assert all(job.limit <= 200 for job in PLAN)


def test_wheels_leave_out_what_the_machine_has():
    installed = 'rich==15.0.0\nscipy @ file:///x\nopencv-python-headless==5.0.0.93'
    names = {line.split('==')[0] for line in missing_packages(installed)}
    assert names >= {
        'mmengine',
        'mmpretrain',
        'mmcv-lite',
        'msgspec',
        'pytest',
        'addict',
        'lightly',
    }
    assert 'opencv-python' not in names, (
        'opencv-python is downloaded although the headless package is installed'
    )
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


# For each job: the group with which test_every_job_runs_at_tiny_size_on_a_cpu runs it. A group takes at most ten minutes. Jobs
# that are not listed belong to the group 'steps'.
REHEARSALS = {
    **{job.name: 'compile' for job in PLAN if {'compile', 'graphs'} & set(job.name.split())},
    **{job.name: 'cases' for job in PLAN if job.name.startswith('case ')},
    **dict.fromkeys(['resume', 'demo', 'tests'], 'runs'),
    **{job.name: 'real runs' for job in PLAN if job.needs == 'draw'},
    **dict.fromkeys(['numbers', 'kernels', 'other libraries', 'supervised'], 'numbers'),
}


def rehearse(out: Path, device: str, jobs: list[str]) -> set[str]:
    """Run jobs at tiny sizes, and return those that succeeded."""
    command = [sys.executable, '-m', 'projects.benchmark.gpu_visit', '--device', device]
    settings = ['--patience', '20', '--seconds', '3000', '--out', str(out), '--only', *jobs]
    # Sockets require a short path, and the path of pytest's temporary folder can be too long.
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, 'TMPDIR': scratch}
        process = subprocess.run(
            [*command, *settings], cwd=ROOT, env=environment, capture_output=True, text=True
        )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-2000:]
    return finished_jobs(out / 'results.jsonl')


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('name', [*dict.fromkeys(REHEARSALS.values()), 'steps'])
def test_every_job_runs_at_tiny_size_on_a_cpu(tmp_path, name):
    if name == 'compile' and not shutil.which('g++'):
        pytest.skip('torch requires g++ to compile for a CPU')
    jobs = [job.name for job in PLAN if REHEARSALS.get(job.name, 'steps') == name]
    assert rehearse(tmp_path, 'cpu', jobs) >= set(jobs), (tmp_path / 'log.txt').read_text()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_visit_is_rehearsed_on_a_software_gpu(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tests/softgpu'))
    import build_runtime

    if build_runtime.missing():
        pytest.skip(build_runtime.missing())
    jobs = [
        'machine',
        'probe',
        'case heads',
        'step fast',
        'waits',
        'other libraries',
    ]
    assert rehearse(tmp_path, 'software', jobs) >= set(jobs)
