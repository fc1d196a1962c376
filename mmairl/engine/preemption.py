"""What a run is told when its machine is wanted for something else, and what it tells in return."""

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from mmairl.errors import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
REQUEUE = Stopped.exit_code


class Preempted(Stopped):
    """The run stopped because a signal asked it to, and can be resumed."""

    def __init__(self, number: int, steps: int, path: Path) -> None:
        super().__init__(f'stopped by {signal.Signals(number).name} after {steps} iterations: {path} is written')


class Listener:
    """Calls a handler on each of SIGNALS, from `start` to `stop`; a child that a library forks meanwhile ends by them instead.

    It would inherit the handler, and Python forgets a signal that comes before a child has set itself up: a pool that ends its
    workers would wait for them for ever. So signals are held back while a fork goes on, and the child has the default again.
    """

    listening: 'Listener | None' = None

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self.handler = handler

    def start(self) -> None:
        _watch_forks()
        if Listener.listening is not None:  # of a run that failed: its handler is not what to go back to
            Listener.listening.stop()
        Listener.listening = self
        self.before = {number: signal.signal(number, self.handler) for number in SIGNALS}

    def stop(self) -> None:
        """Go back to what was before; a second call does nothing."""
        if Listener.listening is not self:
            return
        for number, handler in self.before.items():
            signal.signal(number, handler)
        Listener.listening = None

    def hold(self) -> None:
        self.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def leave_child(self) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        Listener.listening = None
        self.release()


@functools.cache
def _watch_forks() -> None:
    """For the rest of the process: Python has no way to take this back."""
    if hasattr(os, 'register_at_fork'):
        watch = {'before': 'hold', 'after_in_parent': 'release', 'after_in_child': 'leave_child'}
        os.register_at_fork(**{when: functools.partial(_tell_listener, act) for when, act in watch.items()})


def _tell_listener(act: str) -> None:
    if Listener.listening is not None:
        getattr(Listener.listening, act)()


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
