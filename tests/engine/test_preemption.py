"""A run that is told to stop saves itself and asks for another try."""

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
from mmairl.engine.preemption import REQUEUE, SIGNALS, Listener, Preempted
from mmairl.hooks import PreemptionHook

SCRIPT = Path(resuming.__file__)
ROOT = SCRIPT.parents[1]
ENVIRONMENT = {
    **os.environ,
    'PYTHONPATH': os.pathsep.join([str(ROOT), str(SCRIPT.parent)]),
    'OMP_NUM_THREADS': '1',
    'PYTHONUNBUFFERED': '1',
}


def start(*command: object) -> subprocess.Popen:
    return subprocess.Popen(
        list(map(str, command)), env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(process: subprocess.Popen, text: str) -> str:
    """What the process has said when it says this."""
    said = ''
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f'{text!r} was never said:\n{said}')


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_finishes_the_step_saves_and_asks_for_another_try(tmp_path, number):
    """Sent to all processes of the job, data workers too, as a scheduler does, and twice."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), 'none', 'workers', str(tmp_path / 'run'), '0', 'new'],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored where the tests run in the background
    )
    wait_for(process, '[2/5]')
    os.killpg(process.pid, number)
    time.sleep(0.02)
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == REQUEUE, said
    assert f'stopped by {signal.Signals(number).name} after' in said and 'Traceback' not in said
    saved = Path((tmp_path / 'run' / 'last_checkpoint').read_text())
    assert saved.name.startswith('iter_') and not list(saved.parent.glob('.*.tmp'))
    if number == signal.SIGTERM:
        whole = resuming.run(resuming.config('workers', str(tmp_path / 'whole')))
        resumed = resuming.run(resuming.config('workers', str(tmp_path / 'run'), resume=True))
        resuming.assert_the_same_run(whole, resumed)


def test_under_accumulation_the_optimizer_step_is_finished_first(tmp_path):
    process = start(sys.executable, SCRIPT, 'none', 'lars_accumulated', tmp_path / 'run', 0, 'new')
    wait_for(process, '[ 5/10]')
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == REQUEUE, said
    saved = Path((tmp_path / 'run' / 'last_checkpoint').read_text())
    assert int(saved.stem.removeprefix('iter_')) % 2 == 0


def test_a_signal_to_one_of_two_processes_stops_both_after_the_same_step(tmp_path):
    """torchrun then starts both again, and the run ends as one that nobody disturbed."""
    command = [sys.executable, '-m', 'mmairl.engine.torchrun', '--nproc_per_node=2', '--max-restarts=1']
    script = tmp_path / 'script.py'
    script.write_text(
        'import os, sys\n'
        "again = int(os.environ['TORCHELASTIC_RESTART_COUNT']) > 0\n"
        "print('process', os.getpid(), flush=True)\n"
        f"sys.argv = ['', 'pytorch', 'workers', {str(tmp_path / 'run')!r}, '0', 'resume' if again else 'new']\n"
        'import resuming\n'
        'resuming.main()\n'
    )
    process = start(*command, script)
    said = wait_for(process, '[2/5]')
    one = int(said.split('process ')[1].split()[0])
    os.kill(one, signal.SIGUSR1)
    rest, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said + rest
    assert rest.count('stopped by SIGUSR1 after') == 1
    run_whole = start(*command, SCRIPT, 'pytorch', 'workers', tmp_path / 'whole', 0, 'new')
    assert run_whole.communicate(timeout=600) and run_whole.returncode == 0
    ends = [Path((tmp_path / name / 'last_checkpoint').read_text()) for name in ('whole', 'run')]
    resuming.assert_the_same_run(*ends)


def test_a_signal_before_the_run_has_begun_asks_for_another_try(tmp_path):
    """While Python imports torch and mmengine, which takes seconds."""
    process = start(sys.executable, ROOT / 'tools' / 'train.py', 'configs/none.py', '--work-dir', tmp_path)
    status = Path(f'/proc/{process.pid}/status')
    while not int(status.read_text().split('SigCgt:')[1].split()[0], 16) & 1 << (signal.SIGUSR1 - 1):
        time.sleep(0.005)  # the handler is not there yet
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == REQUEUE


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch):
    """nohup has SIGHUP ignored so that a run outlives its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    listener = Listener(print)
    try:
        listener.start()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN and signal.getsignal(signal.SIGTERM) is print
    finally:
        listener.stop()
        signal.signal(signal.SIGHUP, before)


def test_a_process_that_a_library_forks_during_the_run_ends_by_the_signal(toy_config):
    """However early it comes: mmdet's and scikit-learn's pools wait for the end of those that they have told to stop."""
    runner = launch.build(_shared(toy_config(steps=1)))
    hook = PreemptionHook()
    hook.before_train(runner)
    try:
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
    finally:
        hook.after_train(runner)


def test_on_the_way_out_a_second_signal_changes_nothing(toy_config, monkeypatch):
    """Other processes wait at a barrier while the first one writes; the tool leaves with its code soon after."""
    before = [signal.getsignal(number) for number in SIGNALS]
    _note = PreemptionHook.after_train_iter

    def told(hook, runner, *args, **kwargs):
        hook.signalled = signal.SIGUSR1
        _note(hook, runner, *args, **kwargs)

    monkeypatch.setattr(PreemptionHook, 'after_train_iter', told)
    try:
        with pytest.raises(Preempted, match='stopped by SIGUSR1 after 1 iterations'):
            launch.train(toy_config(steps=3))
        assert all(signal.getsignal(number) not in (signal.SIG_DFL, None) for number in SIGNALS)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        Listener.listening.stop()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_run_that_fails_leaves_the_signals_as_they_were(toy_config, tmp_path):
    """Else the next run would give them back to the handler of one that is gone."""
    before = [signal.getsignal(number) for number in SIGNALS]
    cfg = toy_config(steps=3)
    cfg.custom_hooks = [dict(type='LeaveAt', iteration=2)]
    with pytest.raises(resuming.LeftInTheMiddle):
        launch.train(cfg)
    assert [signal.getsignal(number) for number in SIGNALS] == before and Listener.listening is None
    left, other = Listener(print), Listener(print)
    left.start()
    other.start()
    other.stop()
    left.stop()
    assert [signal.getsignal(number) for number in SIGNALS] == before


def _shared(cfg):
    launch.share_batch(cfg, 1)
    return cfg
