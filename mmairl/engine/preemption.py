"""What a run is told when its machine is wanted for something else, and what it tells in return."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
REQUEUE = 75  # EX_TEMPFAIL: try again later. Any code but 0 makes torchrun restart; this one is worth requeueing for.


class Preempted(Exception):
    """The run stopped because it was told to, and can be gone on with."""

    def __init__(self, number: int, steps: int, path: Path) -> None:
        super().__init__(f'stopped by {signal.Signals(number).name} after {steps} iterations: {path} is written')


def deaf(worker: int, then: Callable[[int], None] | None) -> None:
    """A data worker's start: it heeds its own process's signals only.

    Schedulers signal every process of a job, and a worker that dies of it takes the step down that was to be finished.
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
