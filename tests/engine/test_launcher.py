"""A signal to the launcher or to one process reaches all processes. They save, and the launcher exits with status 75."""

import multiprocessing
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from harness.processes import wait_for

from mmairl.engine import launcher as torchrun
from mmairl.signals import AGAIN, SIGNALS

ROOT = Path(__file__).parents[2]
# This script saves when it gets a signal.
RANK = """
trap 'sleep 0.$RANK; echo saved > $1/saved_$RANK; exit 75' TERM INT HUP USR1 USR2
echo started >> $1/started_$RANK
echo $$ > $1/.pid_$RANK && mv $1/.pid_$RANK $1/pid_$RANK
for i in {1..3000}; do sleep 0.1; done
"""
# A signal can go to the launcher, to one of its processes, or, from a terminal or a scheduler, to the
# launcher and all its processes.
RECEIVERS = ('launcher', 'process', 'all')


def launch(*words: str) -> None:
    os.setpgid(0, 0)
    sys.argv = ['torchrun', *words]
    torchrun.main()


@pytest.fixture(scope='module')
def outcomes(tmp_path_factory) -> dict[tuple[str, int], tuple[int, Path]]:
    """Return, for each receiver and signal, the exit code of a launcher and the folder of its files.

    All launchers run at the same time, because they mostly wait.
    """
    script = tmp_path_factory.mktemp('script') / 'rank.sh'
    script.write_text(RANK)
    started = {}
    # This process has threads of torch, so a plain fork of it sometimes crashed.
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['mmairl.engine.launcher'])
    for to in RECEIVERS:
        for number in SIGNALS:
            folder = tmp_path_factory.mktemp('launcher')
            words = ('--nproc_per_node=2', '--max-restarts=1', '--no-python', 'bash', str(script), str(folder))
            launcher = context.Process(target=launch, args=words)
            launcher.start()
            started[to, number] = launcher, folder
    for (to, number), (launcher, folder) in started.items():
        for rank in (0, 1):
            wait_for((folder / f'pid_{rank}').is_file)
        ranks = [int((folder / f'pid_{rank}').read_text()) for rank in (0, 1)]
        for process in dict(launcher=[launcher.pid], process=ranks[1:], all=[launcher.pid, *ranks])[to]:
            for each in (number, *SIGNALS):
                # The process may have ended after the first signal.
                with suppress(ProcessLookupError):
                    os.kill(process, each)
    for launcher, _ in started.values():
        launcher.join()
    return {case: (launcher.exitcode, folder) for case, (launcher, folder) in started.items()}


@pytest.mark.parametrize('to', RECEIVERS)
@pytest.mark.parametrize('number', SIGNALS)
def test_launcher_saves_all_processes_and_exits_75(outcomes, to, number):
    """The launcher restarts no process."""
    code, folder = outcomes[to, number]
    assert code == AGAIN
    # A process may save twice, because in bash, a second signal may arrive after it has saved and
    # before it ends. The second save overwrites the file.
    for rank in (0, 1):
        assert [(folder / f'{what}_{rank}').read_text() for what in ('started', 'saved')] == ['started\n', 'saved\n']


def test_signal_during_start_waits_for_all_processes(monkeypatch):
    def start(agent, group):
        agent.stop(SIGNALS[0])
        agent._pcontext = 'all of them'

    monkeypatch.setattr(torchrun.LocalElasticAgent, '_start_workers', start)
    monkeypatch.setattr(torchrun.PatientAgent, 'received', 0)
    agent = torchrun.PatientAgent.__new__(torchrun.PatientAgent)
    with pytest.raises(torchrun.SignalException):
        agent._start_workers(None)
    assert agent._pcontext == 'all of them' and not torchrun.PatientAgent.starting


@pytest.mark.parametrize('script', ['dist_train.sh', 'dist_evaluate.sh'])
def test_scripts_exec_the_launcher(tmp_path, script):
    (tmp_path / 'python').write_text('#!/bin/sh\necho $$\n')
    (tmp_path / 'python').chmod(0o755)
    words = ['bash', ROOT / 'tools' / script, *('x.py', '2')[:: 1 if 'train' in script else -1], 'y']
    with subprocess.Popen(words, env={**os.environ, 'PYTHON': str(tmp_path / 'python')}, stdout=-1) as process:
        assert int(process.stdout.read()) == process.pid
