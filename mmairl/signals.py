"""How commands, launchers and training runs stop when they receive a signal.

- A signal may reach one process of a run or all of them, once or several times. If a process dies, the kernel sends SIGTERM
  to its children (`end_with_parent`). Data workers obey only the process that started them.
- In a training run, the signal handler sets a flag. The run finishes its step, saves a checkpoint (`hooks/preemption.py`)
  and exits with the exit code AGAIN. Other commands exit with AGAIN immediately. The handlers are active from
  `mmairl.startup.prepare` to the end of the command.
- Studies, transfers and the launcher pass a signal on to the processes that they started. They wait up to GRACE seconds for
  these processes to save. Studies and transfers use the functions `start` and `stop` for this.
- Under Slurm, a shell script receives the signal, passes it on to the run, and requeues or ends the job (`signals.sh`).

This module does not import torch, because that import takes seconds.
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

# The signals that this module handles. It does not handle SIGQUIT and SIGKILL, which end a process immediately.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
# The exit code EX_TEMPFAIL. It means that running the same command again resumes the work. A scheduler should requeue the job.
AGAIN = 75
# The seconds that a process has to finish its step and to save. Slurm signals a job this long before its time limit.
GRACE = 120
PARENT = 'MMAIRL_PARENT'  # environment variable with the id of the process that called `start`
PR_SET_PDEATHSIG = 1  # defined in linux/prctl.h


class Stopped(BaseException):
    """Raised when a signal stops the command. The message names the signal and the checkpoint that was saved, if any, and
    says how to resume.
    """


class Listener:
    """Handle the signals in SIGNALS until `close` is called.

    Only the first signal has an effect, so that later signals do not disturb the exit. A signal that the process already
    ignores stays ignored, such as SIGHUP under nohup.

    Attributes:
        received: The number of the first signal, or 0 if no signal has arrived.
        answer: A function to call with the number of the first signal.
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
        """Restore the previous signal handlers. If `leaving` is true, ignore further signals until the exit."""
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
    """Make a signal end this process with the exit code AGAIN while the modules of a command are imported.

    If `start` started this process, also make it end when its parent dies.
    """
    if os.environ.get(PARENT) == str(os.getppid()):
        end_with_parent()
    Listener(lambda number: os._exit(AGAIN))


def leave(number: int) -> None:
    """Stop a command after a signal: raise Stopped, in the same way as Ctrl-C raises KeyboardInterrupt.

    During an import, exit immediately instead, because extension modules would replace the exception by a different one.
    With several ranks, also exit immediately, because unwinding would wait on collectives that the other ranks never reach.
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
    """Return the module torch.distributed if this process belongs to a process group, otherwise None. Do not import torch."""
    dist = sys.modules.get('torch.distributed')
    joined = dist is not None and dist.is_available() and dist.is_initialized()
    return dist if joined else None


def stop_processes() -> None:
    """Finish a command with one or several processes.

    All processes leave their process group together, because gloo aborts if one process exits before the others.
    """
    ignore_signals()
    dist = process_group()
    if dist:
        dist.barrier()
        dist.destroy_process_group()


def start(
    command: Sequence[str], env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen:
    """Start a process that ends when the current process dies.

    The new process has its own session. Otherwise Ctrl-C in the terminal would end the process before it saves.
    """
    environment = {**os.environ, **(env or {}), PARENT: str(os.getpid())}
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """Stop processes that `start` started. Kill a process and its group if it has not saved and exited after GRACE seconds.

    Each process receives only one signal and passes it on to its own processes. A second signal would make torch's launcher
    kill its processes.
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
    """On Linux, make the kernel send SIGTERM to this process when its parent dies."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def obey_parent_only(worker: int, then: Callable[[int], None] | None) -> None:
    """Make a data worker ignore the signals in SIGNALS unless its parent sends them. Then call `then` with the worker's number.

    Schedulers and terminals send a signal to every process of a job. The workers must survive it, because the main process
    still needs their data to finish its step.
    """

    def exit_with_parent() -> None:
        while signal.sigwaitinfo(SIGNALS).si_pid != os.getppid():
            pass
        os._exit(0)

    # Only systems with sigwaitinfo report which process sent a signal.
    if hasattr(signal, 'sigwaitinfo'):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=exit_with_parent, daemon=True).start()
    if then is not None:
        then(worker)


@functools.cache
def reset_signals_in_forks() -> None:
    """Make the signals in SIGNALS end the child processes that libraries fork from now on.

    Otherwise, the children would inherit the handlers of this process. Signals are blocked during the fork, because Python
    would lose a signal that arrives before the child is set up. A pool that ends its workers would then wait forever.
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
