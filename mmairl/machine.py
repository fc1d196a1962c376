"""What this process may use of the machine: by what it was given, not by what is there."""

import os
import tempfile
from glob import glob
from pathlib import Path


def cores(root: Path = Path('/')) -> int:
    """The least of its affinity, of what its control groups allow, and of SLURM_CPUS_PER_TASK."""
    given = [len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1]
    given += [int(limit) for limit in _limits(root)]
    if (of_task := os.environ.get('SLURM_CPUS_PER_TASK', '')).isdigit():
        given.append(int(of_task))
    return max(1, min(given))


def _limits(root: Path) -> list[float]:
    """Cores that each control group around this process allows, as `docker run --cpus=2` sets it; both versions of cgroups."""
    try:
        groups = (root / 'proc/self/cgroup').read_text().splitlines()
    except OSError:  # not Linux
        return []
    found = []
    for _, controllers, own in (line.split(':', 2) for line in groups):
        if controllers and 'cpu' not in controllers.split(','):
            continue
        base = root / 'sys/fs/cgroup' / ('cpu' if controllers else '')
        # In a container, the path may be the host's, and the group itself lies at the base.
        for group in (base, *(base / part for part in (Path(own.lstrip('/')), *Path(own.lstrip('/')).parents))):
            files = (
                [group / 'cpu.max'] if not controllers else [group / 'cpu.cfs_quota_us', group / 'cpu.cfs_period_us']
            )
            words = ' '.join(file.read_text() for file in files if file.is_file()).split()
            if len(words) == 2 and words[0] not in ('max', '-1'):
                found.append(int(words[0]) / int(words[1]))
    return found


def cache() -> Path:
    """Where what is made once for all runs of a user lies; with the temporary files where no home can be written."""
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
