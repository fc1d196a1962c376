"""Signals that ask a run to stop: which they are, how processes beside the run take them, and the exit code that asks for
another try."""

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from mmairl.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
REQUEUE = Stopped.exit_code


class Preempted(Stopped):
    """The run stopped because a signal asked it to, and can be resumed."""

    def __init__(self, number: int, steps: int, path: Path) -> None:
        super().__init__(f'stopped by {signal.Signals(number).name} after {steps} iterations: {path} is written')


@functools.cache
def block_signals_in_forks() -> None:
    """Keep SIGNALS waiting while this process forks, from now until it ends.

    Python loses a signal that comes before a forked child has set itself up, and a pool that ends its workers would wait for
    that one for ever.
    """
    masks = []

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    os.register_at_fork(before=block, after_in_parent=release, after_in_child=release)


def ignore_signals() -> None:
    """For a process whose work is done: a signal while it exits must not turn its success into a failure."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def obey_parent_only(worker: int, then: Callable[[int], None] | None) -> None:
    """Start of a data worker, which ignores SIGNALS unless they are sent by its parent.

    Schedulers and terminals signal every process of a job, and a worker that dies ends the step that was to be finished.
    """
    if hasattr(signal, 'sigwaitinfo'):  # elsewhere nobody can know who has sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_leave_with_the_parent, daemon=True).start()
    if then is not None:
        then(worker)


def _leave_with_the_parent() -> None:
    while signal.sigwaitinfo(SIGNALS).si_pid != os.getppid():
        pass
    os._exit(0)
