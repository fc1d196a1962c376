"""How a study is stopped: it signals its runs, and a run passes that on to what it has started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FrameType

from mmairl.engine.preemption import REQUEUE, SIGNALS
from mmairl.errors import UserError

SETPRIV = ('setpriv', '--pdeathsig', 'TERM', '--')


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """The command, to be sent SIGTERM by the kernel when the process that starts it ends, however it ends: it saves and leaves.

    A study that is killed cannot signal its runs, which are in sessions of their own. Where there is no setpriv, of util-linux
    2.33 or later, the run goes on to its end, and its lock keeps others off it.
    """
    return [*(SETPRIV if _has_setpriv() else ()), *command]


@cache
def _has_setpriv() -> bool:
    try:
        return subprocess.run([*SETPRIV, 'true'], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@contextmanager
def passing_on() -> Iterator[Callable[[], None]]:
    """Pass a signal on to the tool that is running, and exit with REQUEUE once it has saved.

    All are in one process group, since subprocess.run does not tell the tool's process id.
    The function that is yielded is to be called between tools.
    """
    received: list[int] = []

    def signal_group(number: int, frame: FrameType | None) -> None:
        if not received:  # the group's signal comes here as well
            received.append(number)
            os.killpg(0, signal.SIGTERM)

    def leave_if_signalled() -> None:
        if received:
            sys.exit(REQUEUE)

    if os.getpgrp() != os.getpid():
        os.setpgrp()
    for number in SIGNALS:
        signal.signal(number, signal_group)
    try:
        yield leave_if_signalled
    except UserError:
        leave_if_signalled()  # the tool has "failed" because it was stopped
        raise


@contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM and a closed terminal end the study as Ctrl-C does: its runs are signalled, and save."""
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
