"""A run that is killed many times, at any moment, and resumed each time: does it end as the undisturbed run?

>>> killed_runs(50, seed=0, folder=Path('/tmp/kills'))['values that differ']  # doctest: +SKIP
0
"""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from projects.faults import small_run
from projects.faults.compare import different_runs, is_damaged

FAULTS = (
    'starts that failed',
    'runs that ended first',
    'damaged checkpoints',
    'left-over files',
    'surplus checkpoints',
    'values that differ',
)
MOMENTS = ('save', 'step', 'save', 'step', 'start')  # what the kills aim at, in turn
FARTHEST = 8  # new iterations that a run gets before it is aimed at
MOST = FARTHEST + 2 * small_run.INTERVAL + 1  # new iterations that it gets before it is killed
SAVING = 0.02  # seconds that a save of the small run takes, about
STEP = 0.04  # seconds, about
GLANCE = 0.0005  # seconds between two looks for a file that is being written
PATIENCE = 120.0  # seconds without the awaited moment


def killed_runs(count: int, seed: int, folder: Path, progress: Callable[[int], None] = lambda done: None) -> dict:
    """Kill one run `count` times with all its processes, finish it, and compare it with an undisturbed one.

    The moments are drawn by `seed`; which of them each kill met is told from the files that it left.
    """
    config = small_run.write_config(folder / 'small.py', MOST * (count + 1), seed)
    victim, draw = Victim(config, folder / 'killed'), random.Random(seed)
    whole = small_run.run_undisturbed(config, folder / 'whole')
    for number in range(count):
        victim.kill_at(MOMENTS[number % len(MOMENTS)], draw)
        progress(number + 1)
    return victim.end(whole)


class Victim:
    """The run that is killed, and the counts."""

    def __init__(self, config: Path, work_dir: Path) -> None:
        self.config, self.work_dir, self.log = config, work_dir, work_dir.with_suffix('.txt')
        self.found: Counter[str] = Counter()
        self.start_takes = 5.0

    def kill_at(self, moment: str, draw: random.Random) -> None:
        """Start the run, wait for such a moment, kill it, and count what is left."""
        self.log.write_bytes(b'')
        with self.log.open('ab') as output:
            process = small_run.start(self.config, self.work_dir, output)
        try:
            self.wait_for(moment, process, draw)
        finally:
            ended = process.poll()
            small_run.end(process)
        if ended is not None:
            self.found['runs that ended first' if ended == 0 else 'starts that failed'] += 1
            return
        self.count_what_is_left(process.pid)

    def wait_for(self, moment: str, process: subprocess.Popen, draw: random.Random) -> None:
        began = time.monotonic()
        if moment == 'start':
            time.sleep(draw.random() * self.start_takes)
            return
        self.wait_until(lambda: self.steps() > 0, process)
        self.start_takes = time.monotonic() - began
        wanted, late = draw.randint(1, FARTHEST), draw.random()
        self.wait_until(lambda: self.steps() >= wanted, process)
        if moment == 'save':
            self.wait_until(lambda: self.unfinished(process.pid), process)
            time.sleep(late * SAVING)
            self.wait_until(lambda: self.unfinished(process.pid), process)  # the next one, if that was too late
        else:
            time.sleep(late * STEP)

    def wait_until(self, happened: Callable[[], object], process: subprocess.Popen) -> None:
        latest = time.monotonic() + PATIENCE
        while not happened() and process.poll() is None and time.monotonic() < latest:
            time.sleep(GLANCE)

    def steps(self) -> int:
        """Iterations since this start."""
        return self.log.read_bytes().count(b'Epoch(train)')

    def unfinished(self, process: int | str = '*') -> list[Path]:
        """Temporary files of this process, or of any."""
        return list(self.work_dir.glob(f'.*.{process}.tmp'))

    def count_what_is_left(self, process: int) -> None:
        where = 'during a save' if self.unfinished(process) else 'between saves'
        self.found[where if self.steps() else 'before a new step'] += 1
        self.found['kills'] += 1
        for path in self.work_dir.glob('*.pth'):
            self.found['checkpoints read back'] += 1
            self.found['damaged checkpoints'] += is_damaged(path)

    def end(self, whole: Path) -> dict[str, int]:
        """Let the run end, and compare."""
        if small_run.run(self.config, self.work_dir) != 0:
            self.found['starts that failed'] += 1
        self.found['left-over files'] = len(self.unfinished())
        self.found['surplus checkpoints'] = max(0, len(list(self.work_dir.glob('iter_*.pth'))) - small_run.KEPT)
        ends = [small_run.last_checkpoint(folder) for folder in (whole, self.work_dir)]
        self.found['values that differ'] = len(different_runs(*ends))
        seen = ('kills', 'during a save', 'between saves', 'before a new step', 'checkpoints read back')
        return {name: self.found[name] for name in (*seen, *FAULTS)}
