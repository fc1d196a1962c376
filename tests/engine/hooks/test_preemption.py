"""A signal makes a run save a checkpoint and exit with status 75. test_resume.py tests runs of two processes."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from harness import resume as resuming

from mmairl.cli import main
from mmairl.engine import run
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.hooks.preemption import PreemptionHook
from mmairl.errors import one_sentence_errors
from mmairl.signals import AGAIN, SIGNALS, Listener, Stopped

TOOLS = Path(__file__).parents[3] / 'tools'


@pytest.fixture(autouse=True)
def handlers():
    """Check that each run and each command restores the signal handlers."""
    # nohup and `&` start a process that ignores some signals, so the default handlers are set
    # first.
    outside = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_DFL}
    for number, handler in outside.items():
        signal.signal(number, handler)


def test_signal_finishes_the_step_and_saves(toy_config, monkeypatch, capsys):
    """The signal arrives twice during training and once more during the exit. test_resume.py resumes such a run with data
    workers.
    """
    monkeypatch.setattr('mmairl.errors.stop_processes', lambda: os.kill(os.getpid(), signal.SIGTERM))
    early = Listener(lambda number: pytest.fail('a signal interrupted the clean-up'))
    signalled = [dict(type='SignalAt', iteration=2, number=signal.SIGINT)]
    cfg = toy_config(width=8, steps=6, batch=12, custom_hooks=signalled, **{'optim_wrapper.accumulative_counts': 3})
    with pytest.raises(SystemExit) as exit_error:
        one_sentence_errors(partial(run.train, cfg))()
    assert exit_error.value.code == AGAIN
    work_dir = Path(cfg.work_dir)
    message = f'stopped by SIGINT after 3 iterations and saved {work_dir}/iter_3.pth; resume with --resume'
    assert message in capsys.readouterr().err
    assert (work_dir / 'last_checkpoint').read_text().endswith('/iter_3.pth') and not list(work_dir.glob('.*.tmp'))
    early.close()


def test_signal_during_a_save_keeps_both_checkpoints(toy_config, monkeypatch):
    """The signal arrives in the thread that writes iter_1.pth, after it has written the data and before it renames the
    file.
    """
    first = iter([True])

    def fsync(file: int, plain=os.fsync) -> None:
        if threading.current_thread() is not threading.main_thread() and next(first, False):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        plain(file)

    def wait_for_it(hook: PreemptionHook, runner, **_: object) -> None:
        while runner.iter and not hook.listener.received:
            time.sleep(0.01)

    monkeypatch.setattr(os, 'fsync', fsync)
    monkeypatch.setattr(PreemptionHook, 'before_train_iter', wait_for_it)
    cfg = toy_config(width=8, steps=4, **{'default_hooks.checkpoint.interval': 1})
    with pytest.raises(Stopped):
        run.train(cfg)
    saved = sorted(path.name for path in Path(cfg.work_dir).glob('*iter_*.pth*'))
    assert saved == ['iter_1.pth', 'iter_2.pth'] and load_checkpoint(Path(cfg.work_dir) / 'iter_1.pth')


def test_signal_in_the_last_step_lets_the_run_end(toy_config):
    cfg = toy_config(width=8, steps=2, custom_hooks=[dict(type='SignalAt', iteration=2, number=signal.SIGTERM)])
    assert run.train(cfg).iter == 2


@pytest.mark.parametrize('number', SIGNALS)
def test_signal_to_any_command_cleans_up_and_exits_75(capsys, number):
    """A second signal does not interrupt the clean-up after the first."""
    cleaned = []

    def main() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)

    with pytest.raises(SystemExit) as exit_error:
        one_sentence_errors(main)()
    assert exit_error.value.code == AGAIN and cleaned
    assert capsys.readouterr().err == f'stopped by {number.name}; run the same command to resume\n'


SIGNALED_RANK = """
import os, signal, sys, time
import torch.distributed as dist
from mmairl.errors import one_sentence_errors

@one_sentence_errors
def main():
    dist.init_process_group('gloo', init_method='file://' + sys.argv[1], rank=0, world_size=1)
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        time.sleep(10)
    finally:
        print('waits for other ranks', flush=True)

main()
"""


def test_signaled_rank_exits_without_waiting(tmp_path):
    """The other ranks may be in a collective that this rank never reaches, for example in an evaluation."""
    command = [sys.executable, '-c', SIGNALED_RANK, tmp_path / 'meeting']
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == AGAIN and not process.stdout and 'stopped by SIGUSR2' in process.stderr, process.stderr


# With these arguments, each command gets as far as its imports.
COMMANDS = {
    'train': 'a.py',
    'evaluate': 'knn a.py a.pth',
    'transfer': 'a.pth',
    'study': 'a.yaml',
    'demo': '',
    'normrescale': 'a.pth b.pth --constant 1',
    'convert': 'a.pth b.pth',
    'analyze': 'norms a.pth',
    'report': 'folder',
    'pack': 'images a.tar',
    'factors': '',
}
MODULES = ('mmairl.engine.launcher', 'mmairl.study.worker')


def test_each_command_has_arguments_here():
    assert list(COMMANDS) == list(main.COMMANDS)


@pytest.mark.parametrize('command', [*COMMANDS, *MODULES])
def test_signal_before_work_starts_exits_75(tmp_path, command):
    """The signal arrives while Python imports torch. A file named torch.py stands in for torch and raises the signal."""
    (tmp_path / 'torch.py').write_text('import signal; signal.raise_signal(signal.SIGUSR1)')
    path = os.pathsep.join([str(tmp_path), str(TOOLS.parent)])
    words = ['-m', command]
    if command in COMMANDS:
        words = [str(TOOLS / f'{command}.py'), *COMMANDS[command].split()]
    process = subprocess.run([sys.executable, *words], env={**os.environ, 'PYTHONPATH': path}, capture_output=True)
    assert process.returncode == AGAIN, process.stderr


@pytest.fixture
def hook():
    """Yield a hook whose signal handlers are installed. They are removed after the test."""
    hook = PreemptionHook()
    hook.before_train(None)
    yield hook
    hook.after_train(None)


def test_ignored_signal_stays_ignored(request):
    """nohup ignores SIGHUP so that a run continues after its terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hook = request.getfixturevalue('hook')
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == hook.listener
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signal_ends_a_forked_child(hook):
    """A child must end even if the signal arrives right after the fork, because the pools of mmdet and scikit-learn wait for
    the children that they stop.
    """
    for _ in range(10):
        process = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join(600)
        code = process.exitcode
        process.kill()
        assert code == -signal.SIGTERM
    os.kill(os.getpid(), signal.SIGUSR1)
    assert hook.listener.received == signal.SIGUSR1


def test_failed_run_restores_signal_handlers(toy_config):
    cfg = toy_config(steps=3, width=8, custom_hooks=[dict(type='LeaveAt', iteration=2)])
    with pytest.raises(resuming.LeftInTheMiddle):
        run.train(cfg)
