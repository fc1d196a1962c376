"""How everything stops: who sends, who waits, who saves and who leaves.

- Schedulers, launchers and terminals send one of SIGNALS, to one process or to all, once or often; so does the kernel to
  the children of a process that dies (`end_with_parent`). Data workers obey their own process alone.
- A study, a transfer and the launcher tell their processes and wait GRACE seconds for them (`start`, `stop`).
- A run in training finishes its step and saves itself (`hooks/preemption.py`).
- A command leaves with AGAIN: the same command goes on. This holds from `mmairl.startup.prepare` to its end.
- Under Slurm the scheduler tells a shell, which tells its run and puts the job back into the queue or ends it (`signals.sh`).

Nothing here imports torch before a command has begun, which takes seconds.
"""

import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

# SIGQUIT and SIGKILL end a process at once.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
AGAIN = 75  # EX_TEMPFAIL, try again later: torchrun restarts on any code but 0, a scheduler should requeue on this one
GRACE = 120  # seconds to finish a step and save, as many as the jobs of Slurm have
PARENT = 'MMAIRL_PARENT'  # in the environment of what `start` has started: this process's number
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class Stopped(BaseException):
    """The command was asked to end; the text says by what, what is saved, and how it goes on."""


class Listener:
    """Hears SIGNALS until it is closed; the first one is answered, and those after it disturb nobody on the way out.

    A signal that is ignored stays ignored, as SIGHUP under nohup.
    """

    def __init__(self, answer: Callable[[int], None] | None = None) -> None:
        reset_signals_in_forks()
        self.told, self.answer = 0, answer
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self.before: dict[int, Any] = {number: signal.signal(number, self) for number in heard}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        first, self.told = not self.told, self.told or number
        if first and self.answer:
            self.answer(number)

    def close(self, leaving: bool = True) -> None:
        """Give the signals back; on the way out nobody answers any more."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
        if leaving:
            answer_no_more()


def answer_no_more() -> None:
    """The work is done or saved: a signal changes nothing while the process exits."""
    for number in SIGNALS:
        if isinstance(listener := signal.getsignal(number), Listener):
            listener.answer = None


def listen_early() -> None:
    """Exit with AGAIN on a signal while a command is imported. A child of `start` also ends with its parent."""
    if os.environ.get(PARENT) == str(os.getppid()):
        end_with_parent()
    Listener(lambda number: os._exit(AGAIN))


def leave(number: int) -> None:
    """Raise Stopped in a command, as Ctrl-C raises KeyboardInterrupt.

    Exit immediately during an import, because extension modules turn the exception of an import into another one. Exit
    immediately with several ranks, too: unwinding would wait on collectives that the other ranks never reach.
    """
    if importing():
        os._exit(AGAIN)
    stopped = Stopped(f'stopped by {signal.Signals(number).name}; the same command goes on where it can')
    dist = process_group()
    if dist is None:
        raise stopped
    if dist.get_rank() == 0:
        print(stopped, file=sys.stderr, flush=True)
    os._exit(AGAIN)


def importing() -> bool:
    """Return whether the caller runs in the middle of an import."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith('<frozen importlib'):
            return True
        frame = frame.f_back
    return False


def process_group() -> ModuleType | None:
    """Return torch.distributed if this process is in a group. torch is not imported for it, which would take seconds."""
    dist = sys.modules.get('torch.distributed')
    joined = dist is not None and dist.is_available() and dist.is_initialized()
    return dist if joined else None


def stop_processes() -> None:
    """End a command's work. Processes leave their group together: gloo's threads abort one that exits while they run."""
    answer_no_more()
    if dist := process_group():
        dist.barrier()
        dist.destroy_process_group()


def start(command: Sequence[str], env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen:
    """Start a process that ends when this one does, in a session of its own: a Ctrl-C would end it unsaved."""
    known = {**os.environ, **(env or {}), PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=known, start_new_session=True, **options)


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """Tell processes of `start` to save and leave. One that is there after GRACE is killed with all that it has started.

    Each is told once and passes it on: a second signal makes torch's launcher kill its processes.
    """
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when the one that started it dies, on Linux."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def obey_parent_only(worker: int, then: Callable[[int], None] | None) -> None:
    """Start a data worker that ignores SIGNALS unless its parent sends them.

    Schedulers and terminals signal every process of a job, and a worker that dies ends the step that was to be finished.
    """

    def leave_with_parent() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != os.getppid():
            pass
        os._exit(0)

    if hasattr(signal, 'sigwaitinfo'):  # elsewhere nobody can know who has sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=leave_with_parent, daemon=True).start()
    if then is not None:
        then(worker)


@functools.cache
def reset_signals_in_forks() -> None:
    """From now on, a child that this process forks, as libraries do for their pools, ends by SIGNALS and not by our handlers.

    Signals wait during the fork: Python loses one that comes before the child has set itself up, and a pool that ends its
    workers would wait for that one for ever.
    """
    masks = []

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def release_child() -> None:
        for number in SIGNALS:
            if callable(signal.getsignal(number)):  # not what is ignored
                signal.signal(number, signal.SIG_DFL)
        release()

    os.register_at_fork(before=block, after_in_parent=release, after_in_child=release_child)
