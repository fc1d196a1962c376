"""A disk that fills up while a run saves itself: does it end in one sentence, with its older checkpoints, and go on?

>>> full_disks(5, seed=0, folder=Path('/tmp/disk'))['values that differ']  # doctest: +SKIP
0
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mmairl.engine.verify import damage
from projects.faults import small_run
from projects.faults.compare import different_runs

SEEN = ('full disks', 'on a file system of its own', 'with another traceback above', 'went on')
FAULTS = (
    'ended otherwise',
    'said otherwise',
    'damaged checkpoints',
    'left-over files',
    'could not go on',
    'values that differ',
)
SIZE = 24 * 2**20  # bytes: room for ten checkpoints of the small run
ROOMS = (0.5, 0.0)  # the first shares of a checkpoint that there is room for
SENTENCE = 'error: the disk is full: '
PATIENCE = 120.0  # seconds until the first checkpoint


def full_disks(count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None) -> dict:
    """Fill the disk below `count` runs, leaving room for half a checkpoint, for no byte, then for shares drawn by `seed`.

    Where a file system may be mounted the disk is one; elsewhere files may not grow beyond a limit, which the system
    reports in the same way.
    """
    config = small_run.write_config(folder / 'small.py', 30, seed)
    if small_run.run(config, folder / 'whole') != 0:
        raise RuntimeError(f'the run with room enough does not end; see {folder / "whole.txt"}')
    size = small_run.last_checkpoint(folder / 'whole').stat().st_size
    draw, found = random.Random(seed), Counter()
    for number in range(count):
        with small_disk(folder / f'disk_{number}') as disk:
            share = ROOMS[number] if number < len(ROOMS) else draw.random()
            found.update(one_run(config, disk, int(size * share), folder / 'whole'))
        progress(number + 1)
    return {name: found[name] for name in (*SEEN, *FAULTS)}


def one_run(config: Path, disk: 'TmpFs | FileLimit', room: int, whole: Path) -> Counter[str]:
    """Fill the disk behind the first checkpoint, see how the run ends, make room, and let it go on."""
    work_dir = disk.folder / 'run'
    code, said = until_full(config, work_dir, disk, room)
    found = Counter({'full disks': 1, 'on a file system of its own': isinstance(disk, TmpFs)})
    found['ended otherwise'] = code != 2
    errors = [line for line in said.splitlines() if line.startswith('error: ')]
    # With no byte left, TensorBoard's own thread writes a traceback as well, above the sentence.
    found['said otherwise'] = len(errors) != 1 or not said.splitlines()[-1].startswith(SENTENCE)
    found['with another traceback above'] = 'Traceback' in said
    saved = list(work_dir.glob('*.pth'))
    found['damaged checkpoints'] = sum(damage(path) is not None for path in saved) + (not saved)
    found['left-over files'] = len(list(work_dir.glob('.*.tmp')))
    disk.free()
    went_on = small_run.run(config, work_dir) == 0
    found['went on' if went_on else 'could not go on'] = 1
    if went_on:
        ends = [small_run.last_checkpoint(folder) for folder in (whole, work_dir)]
        found['values that differ'] = len(different_runs(*ends))
    return found


def until_full(config: Path, work_dir: Path, disk: 'TmpFs | FileLimit', room: int) -> tuple[int, str]:
    """The exit code of a run that loses its disk, and what it has said."""
    process = small_run.start(config, work_dir, subprocess.PIPE)
    latest = time.monotonic() + PATIENCE
    try:
        while not (work_dir / 'last_checkpoint').is_file() and process.poll() is None and time.monotonic() < latest:
            time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)  # else it would write on while the disk is being filled
        disk.fill(process, room)
        process.send_signal(signal.SIGCONT)
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        small_run.end(process)
    return process.returncode, said.decode()


def small_disk(folder: Path) -> 'TmpFs | FileLimit':
    """The best that this user may have."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={SIZE}', 'tmpfs', str(folder)]
    may = shutil.which('mount') and subprocess.run(mount, capture_output=True).returncode == 0
    return TmpFs(folder) if may else FileLimit(folder)


class TmpFs:
    """A mounted file system of SIZE bytes, in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.filler = folder, folder / 'filler'

    def fill(self, process: subprocess.Popen, room: int) -> None:
        with self.filler.open('wb', buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, self.left() - room))

    def left(self) -> int:
        state = os.statvfs(self.folder)
        return state.f_bavail * state.f_frsize

    def free(self) -> None:
        self.filler.unlink()

    def __enter__(self) -> 'TmpFs':
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(['umount', '--lazy', str(self.folder)], check=True)


class FileLimit:
    """A process whose files may not grow beyond a size, for users who may mount nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, process: subprocess.Popen, room: int) -> None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, room))

    def free(self) -> None:
        """The next process has no such limit."""

    def __enter__(self) -> 'FileLimit':
        return self

    def __exit__(self, *_: object) -> None:
        pass
