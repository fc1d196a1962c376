"""The preparation of a process that runs a command of this package."""

import logging
import os

from mmairl.errors import printable
from mmairl.signals import listen_early


class PrintableRecord(logging.LogRecord):
    """A log record that escapes control characters except line breaks. Names in a message may contain some."""

    def getMessage(self) -> str:
        return '\n'.join(map(printable, super().getMessage().split('\n')))


def prepare() -> None:
    """Prepare this process for a command. Only entry points call this function, before they import torch.

    After it, a signal that arrives during the imports, which take seconds, ends the process with 75. Waiting OpenMP threads
    give up their core instead of spinning, which makes steps ten times as long on a busy machine. torch reads that setting
    when it is imported.
    """
    listen_early()
    logging.setLogRecordFactory(PrintableRecord)
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
