"""The cores, the cache folder and the GPU that this process may use."""

import ctypes
import os
import platform
import tempfile
from glob import glob
from pathlib import Path

from joblib import cpu_count


def cores() -> int:
    """Return the smallest of CPU affinity, control-group limit and SLURM_CPUS_PER_TASK."""
    limit = cpu_count()  # affinity and control group
    task = os.environ.get('SLURM_CPUS_PER_TASK', '')
    if task.isdigit():
        limit = min(limit, int(task))
    return max(1, limit)


def processor() -> str:
    """Return the name of the CPU, such as 'AMD EPYC 7763 64-Core Processor'; '' if it is unknown."""
    try:
        lines = Path('/proc/cpuinfo').read_text('utf-8', 'replace').splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.processor()


def cache() -> Path:
    """Return the cache folder of the user, or a temporary folder if the home is not writable."""
    try:
        folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmairl'
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        pass
    return Path(tempfile.gettempdir()) / f'mmairl-{os.getuid()}'


def unusable_gpu() -> str:
    """Return why torch cannot use the GPU of this machine.

    The result is '' if torch can use it, if there is no GPU, or if CUDA_VISIBLE_DEVICES hides it.
    """
    import torch  # must follow `prepare`, because torch reads OMP_WAIT_POLICY when it is imported

    hidden = os.environ.get('CUDA_VISIBLE_DEVICES') in ('', '-1')
    if hidden or torch.cuda.is_available() or not glob('/dev/nvidia[0-9]*') + glob('/dev/kfd'):
        return ''
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return 'torch does not see it'


def keep_freed_memory() -> None:
    """Make glibc keep the memory that a step frees for the next step.

    By default, glibc returns the memory of large tensors to the system and requests it again in each step, and the system
    fills it with zeros each time.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt is None:
        return
    # The numbers are those of malloc.h.
    mallopt(-8, 1)  # M_ARENA_MAX
    mallopt(-4, 0)  # M_MMAP_MAX
    mallopt(-1, -1)  # M_TRIM_THRESHOLD
    mallopt(-2, 64 << 20)  # M_TOP_PAD
