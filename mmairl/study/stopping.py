"""How a study is stopped: it tells its runs, a run ends with what has started it, and what it has started ends with it."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mmairl.engine.preemption import REQUEUE, SIGNALS
from mmairl.errors import UserError

LIBC = ctypes.CDLL(None) if sys.platform == 'linux' else None  # opened here: a forked child must not


def end_with_the_parent() -> None:
    """Have the kernel send SIGTERM when the parent ends, however it ends: what trains saves itself then, and leaves.

    What is killed can tell its children nothing, and those of another session do not die with it. Linux only; elsewhere the
    run trains to its end, and its lock keeps others off it.
    """
    if LIBC is not None:
        LIBC.prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG, which outlasts an exec


@contextmanager
def passing_on() -> Iterator[Callable[[], None]]:
    """Tell the tool that is under way to stop when this process is told to, and leave with REQUEUE once it has saved itself.

    They are a group of their own, since subprocess.run keeps the tool's id to itself.
    What is yielded is to be called between tools.
    """
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        if not told:  # the group's signal comes here as well
            told.append(number)
            os.killpg(0, signal.SIGTERM)

    def heed() -> None:
        if told:
            sys.exit(REQUEUE)

    if os.getpgrp() != os.getpid():
        os.setpgrp()
    for number in SIGNALS:
        signal.signal(number, tell)
    try:
        yield heed
    except UserError:
        heed()  # the tool has "failed" because it was told to stop
        raise


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and a closed terminal end the study as Ctrl-C does: its runs are told, and save themselves."""
    caught = [signal.SIGINT]

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # schedulers repeat themselves, and the runs are being waited for
        caught[0] = signal.Signals(number)
        raise KeyboardInterrupt

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers:  # but not under nohup
        signal.signal(number, stop)
    try:
        yield
    except KeyboardInterrupt:
        print('the study was stopped; the same command goes on where it was', file=sys.stderr)
        sys.exit(128 + caught[0])
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
