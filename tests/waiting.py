"""Waiting with an end."""

import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], object], seconds: float = 120, what: str = '') -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f'waited in vain {what}'
        time.sleep(0.05)


def ended(pid: int | str) -> bool:
    """Whether a process is gone, or waits only for its parent, which may be a container's that never asks."""
    try:
        return 'State:\tZ' in Path(f'/proc/{pid}/status').read_text()
    except OSError:
        return True
