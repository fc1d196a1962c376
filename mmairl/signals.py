"""How commands and training runs stop when they receive a signal.

- A signal may reach one process of a run or all of them, once or several times.
- In a training run, the signal handler sets a flag. The run finishes its step, saves a checkpoint (`hooks/preemption.py`)
  and exits with the exit code AGAIN. Other commands exit with AGAIN immediately.
- Studies and transfers start processes by `start`, and `stop` gives these processes GRACE seconds to save.
- Under Slurm, a shell script receives the signal, passes it on to the run, and requeues or ends the job (`signals.sh`).

This module does not import torch, because that import takes seconds.
"""

import logging
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
# How messages name the arguments of a training run. `prepare` replaces those of `mmairl.pretrain` by those of `mmairl train`.
ARGUMENTS = dict(resume='resume=True', folder='out')


class Stopped(BaseException):
    """Raised when a signal stops the command. The message names the signal and the checkpoint that was saved, if any, and
    says how to resume.
    """


def prepare() -> None:
    """Prepare this process for a command. Only entry points call this function, and they call it before they import torch.

    OMP_WAIT_POLICY makes waiting OpenMP threads give up their core. By default, they would spin, and on a busy machine a
    training step would take ten times as long. torch reads this variable when it is imported.
    """
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
    ARGUMENTS.update(resume='--resume', folder='--work-dir')
    # mmengine imports DeepSpeed if it is installed, which then warns in every command on a machine without a GPU.
    banner = 'Setting accelerator to CPU'
    deepspeed = logging.getLogger('DeepSpeed')
    deepspeed.addFilter(lambda record: not record.getMessage().startswith(banner))


class Listener:
    """Handle the signals in SIGNALS until `close` is called.

    Only the first signal has an effect, so that later signals do not disturb the exit. A signal that the process already
    ignores stays ignored, such as SIGHUP under nohup.

    Attributes:
        received: The number of the first signal, or 0 if no signal has arrived.
        answer: A function to call with the number of the first signal.
    """

    def __init__(self, answer: Callable[[int], None] | None = None) -> None:
        self.process = os.getpid()
        self.received = 0
        self.answer = answer
        self.before: dict[int, Any] = {}
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self.before[number] = signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:
            os._exit(
                128 + number
            )  # a library forked this process, such as a pool, which ends it by a signal
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


def leave(number: int) -> None:
    """Stop a command after a signal: raise Stopped, in the same way as Ctrl-C raises KeyboardInterrupt.

    With several processes, exit immediately, because unwinding would wait for the other processes.
    """
    message = f'stopped by {signal.Signals(number).name}; run the same command to resume'
    dist = process_group()
    if dist is None:
        raise Stopped(message)
    if dist.get_rank() == 0:
        print(message, file=sys.stderr, flush=True)
    os._exit(AGAIN)


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
    """Start a process in its own session. Otherwise Ctrl-C in the terminal would end it before it saves."""
    environment = {**os.environ, **(env or {})}
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


def stop(processes: Sequence[subprocess.Popen]) -> None:
    """Stop processes that `start` started. Kill a process and its group if it has not saved and exited after GRACE seconds.

    Each process receives only one signal and passes it on to its own processes. A second signal would make torchrun kill its
    processes.
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
