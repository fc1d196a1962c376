"""The CPU cores, the cache folder and the memory that this process may use."""

import ctypes
import os
import tempfile
from pathlib import Path

from joblib import cpu_count


def cores() -> int:
    """Return the number of CPU cores that this process may use.

    The CPU affinity, the control group and SLURM_CPUS_PER_TASK limit this number.
    """
    limit = cpu_count()  # joblib respects the CPU affinity and the control group
    task = os.environ.get('SLURM_CPUS_PER_TASK', '')
    if task.isdigit():
        limit = min(limit, int(task))
    return max(1, limit)


def cache() -> Path:
    """Return the folder of mmairl in the cache of the user, or a temporary folder if the cache is not writable."""
    try:
        folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmairl'
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError is raised if the user has no home
        pass
    return Path(tempfile.gettempdir()) / f'mmairl-{os.getuid()}'


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a training step frees, so that the next step can use it again.

    By default, glibc returns the memory of large tensors to the operating system and requests it again in each step. The
    system then fills the memory with zeros each time, which slows down training.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is None:
        return
    # The numbers of these parameters are defined in malloc.h.
    mallopt(-8, 1)  # M_ARENA_MAX
    mallopt(-4, 0)  # M_MMAP_MAX
    mallopt(-1, -1)  # M_TRIM_THRESHOLD
    mallopt(-2, 64 << 20)  # M_TOP_PAD
