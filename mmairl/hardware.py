"""The cores, the cache and the GPU that this process may use, which can be fewer than the machine has."""

import ctypes
import os
import tempfile
from glob import glob
from pathlib import Path

from joblib import cpu_count


def cores() -> int:
    """The least of its affinity, of what its control group allows, and of SLURM_CPUS_PER_TASK."""
    given = [cpu_count()]
    if (of_task := os.environ.get('SLURM_CPUS_PER_TASK', '')).isdigit():
        given.append(int(of_task))
    return max(1, min(given))


def cache() -> Path:
    """Return the user's cache folder, or a temporary one where no home can be written."""
    try:
        folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmairl'
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: this user has no home
        pass
    return Path(tempfile.gettempdir()) / f'mmairl-{os.getuid()}'


def unusable_gpu() -> str:
    """Why a GPU that is there cannot be used; '' where there is none, where it can, or where it was hidden on purpose."""
    import torch  # not before OMP_WAIT_POLICY is set

    hidden = os.environ.get('CUDA_VISIBLE_DEVICES') in ('', '-1')
    if hidden or torch.cuda.is_available() or not glob('/dev/nvidia[0-9]*') + glob('/dev/kfd'):
        return ''
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return 'torch finds none'


def keep_freed_memory() -> None:
    """Let this process keep the memory that a step frees for the next step, where its C library is glibc.

    By default large tensors are given back and asked for again in each step, and the system fills their pages with zeros anew.
    """
    if mallopt := getattr(ctypes.CDLL(None), 'mallopt', None):
        arena_max, mmap_max, trim_threshold, top_pad = -8, -4, -1, -2  # as malloc.h numbers them
        for option, value in ((arena_max, 1), (mmap_max, 0), (trim_threshold, -1), (top_pad, 64 << 20)):
            mallopt(option, value)
