"""How a run of a study ends with what has started it, and has what it has started end with it."""

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
