"""Read the size and the modification time of a file."""

import os
from pathlib import Path


def file_stat(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
