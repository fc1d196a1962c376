"""Signals: how commands, launchers and training runs stop.

- A signal may reach one process of a run or all of them, once or several times. The kernel also sends SIGTERM to the
  children of a process that dies (`end_with_parent`). Data workers obey only the process that started them.
- A handler sets a flag. A training run saves after its step (`hooks/preemption.py`) and exits with AGAIN. Other commands
  exit with AGAIN immediately. Handlers are active from `mmairl.startup.prepare` to the end of the command.
- Studies, transfers and the launcher pass a signal on to their processes and wait GRACE seconds (`start`, `stop`).
- Under Slurm, a shell receives the signal, passes it on, and requeues or ends the job (`signals.sh`).

This module does not import torch, which takes seconds.
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

# SIGQUIT and SIGKILL end a process immediately.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
AGAIN = 75  # EX_TEMPFAIL: the same command resumes, so torchrun restarts it and a scheduler should requeue it
GRACE = 120  # seconds to finish a step and save, the same as for Slurm jobs
PARENT = 'MMAIRL_PARENT'  # the process that started this one by `start`
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class Stopped(BaseException):
    """Raised when a signal stops the command. The message names the signal, the saved files, and how to resume."""


class Listener:
    """Handle SIGNALS until closed. Only the first signal has an effect, so that later ones do not disturb the exit.

    A signal that the process ignores stays ignored (SIGHUP under nohup).

    Attributes:
        received: The first signal, or 0.
        answer: Called with the first signal.
    """

    def __init__(self, answer: Callable[[int], None] | None = None) -> None:
        reset_signals_in_forks()
        self.received = 0
        self.answer = answer
        self.before: dict[int, Any] = {}
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return
        self.received = number
        if self.answer:
            self.answer(number)

    def close(self, leaving: bool = True) -> None:
        """Restore the handlers. If the process is leaving, it ignores further signals."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
        if leaving:
            ignore_signals()


def ignore_signals() -> None:
    """Ignore signals from now on, because the work is complete or saved."""
    for number in SIGNALS:
        listener = signal.getsignal(number)
        if isinstance(listener, Listener):
            listener.answer = None


def listen_early() -> None:
    """Exit with AGAIN on a signal while a command is imported. A child of `start` also ends when its parent dies."""
    if os.environ.get(PARENT) == str(os.getppid()):
        end_with_parent()
    Listener(lambda number: os._exit(AGAIN))


def leave(number: int) -> None:
    """Raise Stopped in a command, as Ctrl-C raises KeyboardInterrupt.

    Exit immediately during an import, because extension modules replace the exception by another one. Exit immediately with
    several ranks, too, because unwinding would wait on collectives that the other ranks never reach.
    """
    if importing():
        os._exit(AGAIN)
    stopped = Stopped(f'stopped by {signal.Signals(number).name}; run the same command to resume')
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
    """Return torch.distributed if this process is in a group, without importing torch."""
    dist = sys.modules.get('torch.distributed')
    joined = dist is not None and dist.is_available() and dist.is_initialized()
    return dist if joined else None


def stop_processes() -> None:
    """End a command. All processes leave their group together, because gloo aborts when a process exits before others."""
    ignore_signals()
    dist = process_group()
    if dist:
        dist.barrier()
        dist.destroy_process_group()


def start(
    command: Sequence[str], env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen:
    """Start a process that ends when this one dies. It has its own session, because Ctrl-C would end it before it saves."""
    environment = {**os.environ, **(env or {}), PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """Make processes of `start` save and exit. After GRACE seconds, kill those that remain, with their process groups.

    Each gets a single signal and passes it on, because torch's launcher kills its processes after a second one.
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
    """Make the kernel send SIGTERM to this process when its parent dies (Linux)."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def obey_parent_only(worker: int, then: Callable[[int], None] | None) -> None:
    """Initialize a data worker that ignores SIGNALS unless its parent sends them.

    Schedulers and terminals signal every process of a job, but the current step still requires its workers.
    """

    def exit_with_parent() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != os.getppid():
            pass
        os._exit(0)

    if hasattr(signal, 'sigwaitinfo'):  # other systems do not report the sender of a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=exit_with_parent, daemon=True).start()
    if then is not None:
        then(worker)


@functools.cache
def reset_signals_in_forks() -> None:
    """Make SIGNALS end the children that libraries fork from now on, instead of calling this process's handlers.

    Signals are blocked during the fork. Otherwise Python loses a signal that arrives before the child is set up, and a pool
    that ends its workers would wait forever.
    """
    masks = []

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def reset() -> None:
        for number in SIGNALS:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=reset)
