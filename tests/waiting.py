"""Waiting with an end, and where to meet."""

import socket
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(
    condition: Callable[[], object], seconds: float = 120, what: str = '', progress: Callable[[], object] = bool
) -> None:
    """Wait as long as `progress` is another after each so many seconds: a busy machine is slow, and not at fault."""
    seen, deadline = None, time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            now = progress()
            assert now and now != seen, f'waited in vain {what}'
            seen, deadline = now, time.monotonic() + seconds
        time.sleep(0.05)


def ended(pid: int | str) -> bool:
    """Whether a process is gone, or waits only for its parent, which may be a container's that never asks."""
    try:
        return 'State:\tZ' in Path(f'/proc/{pid}/status').read_text()
    except OSError:
        return True


def free_port() -> int:
    """A port that nobody listens at for now."""
    with socket.create_server(('127.0.0.1', 0)) as free:
        return free.getsockname()[1]
