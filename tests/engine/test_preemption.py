"""A run that is told to stop saves itself and asks for another try; two processes are in test_resume.py."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import resuming

from mmairl.engine import launch
from mmairl.engine.preemption import REQUEUE, SIGNALS, Preempted
from mmairl.errors import one_sentence_errors
from mmairl.hooks import PreemptionHook

TRAIN = Path(__file__).parents[2] / 'tools/train.py'


@pytest.fixture(autouse=True)
def handlers():
    """Each run gives the signals back, but for one that has saved itself and is on its way out."""
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.fixture
def stop(monkeypatch):
    """Trains with a signal before the second iteration; what is said, and the checkpoint."""
    hooks = []
    plain = PreemptionHook.before_train
    monkeypatch.setattr(PreemptionHook, 'before_train', lambda hook, runner: (hooks.append(hook), plain(hook, runner)))

    def train(cfg, number: int) -> tuple[str, Path]:
        cfg.custom_hooks.append(dict(type='SignalAt', iteration=2, number=number))
        with pytest.raises(Preempted) as stopped:
            launch.train(cfg)
        assert signal.getsignal(signal.SIGTERM) == hooks[0]._note, 'a second signal must not end those who still wait'
        os.kill(os.getpid(), signal.SIGTERM)
        return str(stopped.value), Path((Path(cfg.work_dir) / 'last_checkpoint').read_text())

    yield train
    for hook in hooks:
        hook.leaving = False
        hook.after_run(None)


def test_a_signal_finishes_the_step_saves_and_asks_for_another_try(tmp_path, stop):
    """It comes to all processes of the job, data workers too, and twice."""
    said, saved = stop(resuming.config('workers', str(tmp_path / 'run'), **resuming.SHORT), signal.SIGTERM)
    assert said == f'stopped by SIGTERM after 2 iterations: {saved} is written'
    assert saved.name == 'iter_2.pth' and not list(saved.parent.glob('.*.tmp'))
    whole = resuming.run(resuming.config('workers', str(tmp_path / 'whole'), **resuming.SHORT))
    resumed = resuming.run(resuming.config('workers', str(tmp_path / 'run'), resume=True, **resuming.SHORT))
    resuming.assert_the_same_run(whole, resumed)


def test_under_accumulation_the_optimizer_step_is_finished_first(toy_config, stop):
    _, saved = stop(
        toy_config(width=8, steps=6, batch=12, custom_hooks=[], **{'optim_wrapper.accumulative_counts': 3}),
        signal.SIGUSR1,
    )
    assert saved.name == 'iter_3.pth'


def test_a_stopped_run_is_one_line_and_the_exit_code_that_asks_for_another_try(capsys):
    @one_sentence_errors
    def main() -> None:
        raise Preempted(signal.SIGTERM, 7, Path('iter_7.pth'))

    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == REQUEUE
    assert (
        capsys.readouterr().err == 'stopped by SIGTERM after 7 iterations: iter_7.pth is written; go on with --resume\n'
    )


def test_a_signal_before_the_run_has_begun_asks_for_another_try(tmp_path):
    """While Python imports torch and mmengine, which takes seconds."""
    process = subprocess.Popen([sys.executable, TRAIN, 'configs/none.py', '--work-dir', tmp_path])
    status = Path(f'/proc/{process.pid}/status')
    while not int(status.read_text().split('SigCgt:')[1].split()[0], 16) & 1 << (signal.SIGUSR1 - 1):
        time.sleep(0.005)  # the handler is not there yet
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == REQUEUE


@pytest.fixture
def hook(toy_config):
    """A run's hook between the run's start and its end."""
    cfg = toy_config(steps=1, width=8)
    launch.share_batch(cfg, 1)
    runner = launch.build(cfg)
    hook = PreemptionHook()
    hook.before_train(runner)
    yield hook
    hook.after_train(runner)


def test_a_signal_that_is_ignored_stays_ignored(request):
    """nohup has SIGHUP ignored so that a run outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hook = request.getfixturevalue('hook')
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == hook._note
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_a_library_forks_during_the_run_ends_by_the_signal(hook):
    """However early it comes: mmdet's and scikit-learn's pools wait for the end of those that they have told to stop."""
    for _ in range(30):
        process = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,))
        process.start()
        process.terminate()
        process.join(60)
        code = process.exitcode
        process.kill()
        assert code == -signal.SIGTERM
    os.kill(os.getpid(), signal.SIGUSR1)
    assert hook.signalled == signal.SIGUSR1


def test_a_run_that_fails_gives_the_signals_back(toy_config):
    cfg = toy_config(steps=3, width=8, custom_hooks=[dict(type='LeaveAt', iteration=2)])
    with pytest.raises(resuming.LeftInTheMiddle):
        launch.train(cfg)
