"""How a run and the processes beside it take the signals that ask it to stop, and the exit code that asks for another try."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from mmairl.errors import SIGNALS, Stopped

REQUEUE = Stopped.exit_code


class Preempted(Stopped):
    """The run stopped because a signal asked it to, and can be resumed."""

    def __init__(self, number: int, steps: int, path: Path) -> None:
        super().__init__(
            f'stopped by {signal.Signals(number).name} after {steps} iterations: {path} is written; go on with --resume'
        )


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
