"""Fill the disk while a run saves a checkpoint. The run must end with a clear error, keep its checkpoints, and resume later.

>>> full_disks(5, seed=0, folder=Path('/tmp/disk'))['values that differ']  # doctest: +SKIP
0
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path

from rich.progress import track

from mmairl.errors import UserError
from projects.faults import small_run
from projects.faults.compare import different_runs, is_damaged

SEEN = ('full disks', 'with another traceback above', 'went on')
FAULTS = (
    'ended otherwise',
    'said otherwise',
    'damaged checkpoints',
    'left-over files',
    'could not go on',
    'values that differ',
)
SIZE = 24 * 2**20  # size of the disk in bytes, enough for ten checkpoints of the small run
ROOMS = (0.5, 0.0)  # free space of the first two runs, as a fraction of a checkpoint's size
SENTENCE = ': the disk is full'
PATIENCE = 120.0  # maximum seconds to wait for the first checkpoint, and for the end of the run


def full_disks(count: int, seed: int, folder: Path) -> dict:
    """Fill the disk during each of `count` runs, and count the outcomes.

    In the first run, the full disk has space for half a checkpoint, in the second for none, and in each other run for a random
    fraction of a checkpoint.

    The disk is a file system in memory, which only root can mount.
    """
    config = small_run.write_config(folder / 'small.py', 30, seed)
    reference = small_run.run_undisturbed(config, folder / 'whole')
    size = small_run.last_checkpoint(reference).stat().st_size
    draw, counts = random.Random(seed), Counter()
    for number in track(range(count), 'full disks'):
        with TmpFs(folder / f'disk_{number}') as disk:
            share = ROOMS[number] if number < len(ROOMS) else draw.random()
            counts.update(one_run(config, disk, int(size * share), reference))
    return {name: counts[name] for name in (*SEEN, *FAULTS)}


def one_run(config: Path, disk: 'TmpFs', room: int, reference: Path) -> Counter[str]:
    """Fill the disk after the first checkpoint of a run, check how the run ends, free the space, and resume the run."""
    work_dir = disk.folder / 'run'
    code, output = until_full(config, work_dir, disk, room)
    counts = Counter({'full disks': 1})
    counts['ended otherwise'] = code != 2
    errors = [line for line in output.splitlines() if line.startswith('error: ')]
    # If no space is left, TensorBoard's writer thread also prints a traceback above the error message.
    counts['said otherwise'] = len(errors) != 1 or SENTENCE not in output.splitlines()[-1]
    counts['with another traceback above'] = 'Traceback' in output
    checkpoints = list(work_dir.glob('*.pth'))
    counts['damaged checkpoints'] = sum(is_damaged(path) for path in checkpoints) + (
        not checkpoints
    )
    counts['left-over files'] = len(list(work_dir.glob('.*.tmp')))
    disk.free()
    is_resumed = small_run.run(config, work_dir) == 0
    counts['went on' if is_resumed else 'could not go on'] = 1
    if is_resumed:
        ends = [small_run.last_checkpoint(folder) for folder in (reference, work_dir)]
        counts['values that differ'] = len(different_runs(*ends))
    return counts


def until_full(config: Path, work_dir: Path, disk: 'TmpFs', room: int) -> tuple[int, str]:
    """Return the exit code and the output of a run whose disk fills up."""
    process = small_run.start(config, work_dir, subprocess.PIPE)
    latest = time.monotonic() + PATIENCE
    try:
        while (
            not (work_dir / 'last_checkpoint').is_file()
            and process.poll() is None
            and time.monotonic() < latest
        ):
            time.sleep(0.005)
        # Pause the run, so that it cannot write a checkpoint while the disk is being filled.
        process.send_signal(signal.SIGSTOP)
        disk.fill(room)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        small_run.end(process)
    return process.returncode, output.decode()


class TmpFs(AbstractContextManager):
    """A mounted file system of SIZE bytes in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / 'filler'
        folder.mkdir(parents=True, exist_ok=True)
        mount = ['mount', '-t', 'tmpfs', '-o', f'size={SIZE}', 'tmpfs', str(folder)]
        if os.geteuid() != 0 or subprocess.run(mount).returncode:
            raise UserError(
                'faults disk: only root can mount the small disk; run the command as root'
            )

    def fill(self, room: int) -> None:
        state = os.statvfs(self.folder)
        with self.filler.open('wb', buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, state.f_bavail * state.f_frsize - room))

    def free(self) -> None:
        self.filler.unlink()

    def __exit__(self, *_: object) -> None:
        subprocess.run(['umount', '--lazy', str(self.folder)], check=True)
