"""Start of a process that runs one of our commands."""

import logging
import os

from mmairl.errors import printable
from mmairl.signals import listen_early


class PrintableRecord(logging.LogRecord):
    """A log record that escapes control characters, which names in a message may contain, except for line breaks."""

    def getMessage(self) -> str:
        return '\n'.join(map(printable, super().getMessage().split('\n')))


def prepare() -> None:
    """Prepare this process for a command. Entry points call it before they import torch; nothing else does.

    A signal that arrives during the imports, which take seconds, then ends the process with 75. OpenMP threads that wait
    give up their core: by default they spin, which makes a step ten times as long on a busy machine. torch's library reads
    that setting when it is loaded.
    """
    listen_early()
    logging.setLogRecordFactory(PrintableRecord)
    os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')
