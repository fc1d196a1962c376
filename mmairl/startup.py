"""Prepare a process to run a command of mmairl."""

import logging
import os

from mmairl.errors import printable
from mmairl.signals import listen_early


class PrintableRecord(logging.LogRecord):
    """A log record that escapes the control characters in its message, except line breaks.

    File names in a message may contain control characters.
    """

    def getMessage(self) -> str:
        return '\n'.join(map(printable, super().getMessage().split('\n')))


def prepare() -> None:
    """Prepare this process for a command. Only entry points call this function, and they call it before they import torch.

    The imports of a command take seconds. If a signal arrives during that time, the process exits with code 75.

    OMP_WAIT_POLICY makes waiting OpenMP threads give up their core. By default, they would spin, and on a busy machine a
    training step would take ten times as long. torch reads this variable when it is imported.
    """
    listen_early()
    logging.setLogRecordFactory(PrintableRecord)
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
