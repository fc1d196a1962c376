"""Signals that ask a run to stop: which they are, who handles them when, and the exit code that asks for another try."""

import functools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from mmairl.errors import Stopped

SIGNALS = tuple(getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1', 'SIGINT', 'SIGHUP') if hasattr(signal, name))
REQUEUE = Stopped.exit_code


class Preempted(Stopped):
    """The run stopped because a signal asked it to, and can be resumed."""

    def __init__(self, number: int, steps: int, path: Path) -> None:
        super().__init__(f'stopped by {signal.Signals(number).name} after {steps} iterations: {path} is written')


class Listener:
    """Calls a handler on each of SIGNALS, from `start` to `stop`; forked children keep the default signal handlers.

    They would inherit the handler, and Python loses a signal that comes before a child has set itself up: a pool that ends its
    workers would wait for them for ever. So signals are blocked during a fork, and the child sets the defaults. A signal that
    is ignored, as SIGHUP under nohup, stays ignored.
    """

    listening: 'Listener | None' = None

    def __init__(self, handler: Callable[[int, FrameType | None], None]) -> None:
        self.handler = handler

    def start(self) -> None:
        _watch_forks()
        if Listener.listening is not None:  # of a run that failed: its handler is not what to go back to
            Listener.listening.stop()
        Listener.listening = self
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self.before = {number: signal.signal(number, self.handler) for number in heard}

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
        for number in self.before:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        Listener.listening = None
        self.release()


@functools.cache
def _watch_forks() -> None:
    """For the rest of the process: Python has no way to take this back."""
    if hasattr(os, 'register_at_fork'):
        watch = {'before': 'hold', 'after_in_parent': 'release', 'after_in_child': 'leave_child'}
        os.register_at_fork(**{when: functools.partial(_call_listener, act) for when, act in watch.items()})


def _call_listener(act: str) -> None:
    if Listener.listening is not None:
        getattr(Listener.listening, act)()


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
