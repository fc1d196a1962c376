"""Runs of a study in parallel on one machine. Short scripts stand in for training commands."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.errors import raises_code
from harness.processes import ended, wait_for
from study.small_runs import run_in

from mmairl.study import local_pool
from mmairl.study.local_pool import device_shares, execute
from mmairl.study.runs import Run

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, 'PYTHONPATH': str(ROOT)}
# This script writes its process id when it trains, and the file `saved` when it receives SIGTERM.
TRAINS = """
import os, signal, sys, time
from mmairl.signals import prepare
from pathlib import Path
prepare()
folder = Path(sys.argv[1])
def save(number, frame):
    (folder / 'saved').write_text(signal.Signals(number).name)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
(folder / 'training').write_text(str(os.getpid()))
time.sleep(100)
"""


def python(text: str, *arguments: object) -> list[str]:
    return [sys.executable, '-c', text, *map(str, arguments)]


SAYS = 'print({!r}); raise SystemExit({})'
KILLS_ITSELF = 'import os; os.kill(os.getpid(), {:d})'


@pytest.mark.parametrize('scripts, report, log', [
    ([SAYS.format('one', 0), SAYS.format('two', 3), SAYS.format('three', 0)], 'failed: two', 'one\ntwo\n'),
    ([SAYS.format('one', 0), SAYS.format('three', 0)], 'done', 'one\nthree\n'),
    ([SAYS.format('one', 75), SAYS.format('two', 0)], 'stopped', 'one\n'),
    # This run has no handler for SIGTERM, so the signal kills it.
    ([KILLS_ITSELF.format(signal.SIGTERM)], 'stopped', ''),
    ([KILLS_ITSELF.format(signal.SIGKILL)], 'failed: exit code -9', ''),
])  # fmt: skip
def test_commands_run_in_order_until_one_fails(tmp_path, monkeypatch, scripts, report, log):
    (tmp_path / 'failed.txt').write_text('before')
    monkeypatch.setattr(local_pool, 'commands', lambda run, devices: list(map(python, scripts)))
    reported = []
    execute([run_in(tmp_path)], 1, 1, lambda run, what: reported.append(what))
    assert reported == ['running', report] and (tmp_path / 'log.txt').read_text() == log
    assert report != 'done' or not (tmp_path / 'failed.txt').exists()


@pytest.mark.parametrize('listed, expected', [
    ('4,5,6,7', ['4,5', '6,7']), ('GPU-8f,GPU-1c,GPU-33,GPU-20', ['GPU-8f,GPU-1c', 'GPU-33,GPU-20']), ('', ['0,1', '2,3']),
])  # fmt: skip
def test_runs_share_the_visible_gpus(monkeypatch, listed, expected):
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)
    monkeypatch.setattr('torch.cuda.device_count', lambda: 4)
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', listed)
    assert [share['CUDA_VISIBLE_DEVICES'] for share in device_shares(2, 2, needed=2)] == expected
    with raises_code('too-few-gpus'):
        device_shares(2, 3, needed=2)


def test_explicit_number_of_threads_wins(monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    monkeypatch.setenv('OMP_NUM_THREADS', '7')
    assert device_shares(2, 1, needed=1) == [{'OMP_NUM_THREADS': '7'}] * 2


def test_stopped_study_lets_runs_save_and_kills_others(tmp_path, monkeypatch):
    """The run `deaf` and its child ignore SIGTERM."""
    good, deaf = run_in(tmp_path / 'good'), run_in(tmp_path / 'deaf')
    slow = TRAINS.replace('    (folder', '    time.sleep(1)\n    (folder')
    unheard = (
        'import os, signal, sys, time\n'
        'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n'
        'if child := os.fork():\n'
        '    open(sys.argv[1] + "/training", "w").write(str(child))\n'
        'time.sleep(100)\n'
    )
    scripts = {good: python(slow, good.folder), deaf: python(unheard, deaf.folder)}
    monkeypatch.setattr(local_pool, 'commands', lambda run, devices: [scripts[run]])
    monkeypatch.setattr('mmairl.signals.GRACE', 4)
    reports = []

    def interrupt(run: Run, what: str) -> None:
        reports.append((run, what))
        if reports == [(good, 'running'), (deaf, 'running')]:
            wait_for(lambda: all((one.folder / 'training').is_file() for one in (good, deaf)))
            time.sleep(0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute([good, deaf], 2, 1, interrupt)
    assert (good.folder / 'saved').read_text() == 'SIGTERM' and reports[2:] == [
        (good, 'stopping'),
        (deaf, 'stopping'),
    ]
    wait_for(lambda: ended(int((deaf.folder / 'training').read_text())))


@pytest.mark.skipif(sys.platform != 'linux', reason='requires PR_SET_PDEATHSIG')
def test_runs_of_a_killed_study_save_themselves(tmp_path):
    """A killed study cannot signal its runs, and signals of its terminal do not reach them.

    Therefore, the kernel sends SIGTERM to the runs.
    """
    study = (
        'import sys\nfrom pathlib import Path\nfrom mmairl.study import local_pool\nfrom mmairl.study.runs import Run\n'
        'from mmairl.study.spec import Row\n'
        'local_pool.commands = lambda run, devices: [[sys.executable, "-c", sys.argv[2], sys.argv[1]]]\n'
        'local_pool.execute([Run(Row("row", "x.py"), 0, Path(sys.argv[1]), ("knn",))], 1, 1, print)\n'
    )
    process = subprocess.Popen(python(study, tmp_path, TRAINS), env=ENVIRONMENT, start_new_session=True)
    wait_for((tmp_path / 'training').is_file)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for((tmp_path / 'saved').is_file)


@pytest.mark.parametrize('number', [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_stopped_transfer_waits_for_its_tool_to_save(tmp_path, number):
    transfer = (
        'import sys\nfrom pathlib import Path\nfrom mmairl.errors import one_sentence_errors\n'
        'from mmairl.transfer import execute\n'
        'start, tool = execute.start, [sys.executable, "-c", sys.argv[2], sys.argv[1]]\n'
        'execute.start = lambda command: start(tool)\n'
        'one_sentence_errors(lambda: execute._run(Path(sys.argv[1]), 1))()\n'
    )
    slow = TRAINS.replace('    (folder', '    time.sleep(1)\n    (folder')
    process = subprocess.Popen(python(transfer, tmp_path, slow), env=ENVIRONMENT)
    wait_for((tmp_path / 'training').is_file)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(60) == 75 and (tmp_path / 'saved').read_text() == 'SIGTERM'
