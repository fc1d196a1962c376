"""Kill a run many times at random moments and resume it each time. Its last checkpoint must equal that of an undisturbed run.

>>> killed_runs(50, seed=0, folder=Path('/tmp/kills'))['values that differ']  # doctest: +SKIP
0
"""

import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rich.progress import track

from projects.faults import small_run
from projects.faults.compare import different_runs, is_damaged

SEEN = ('kills', 'during a save', 'between saves', 'before a new step', 'checkpoints read back')
FAULTS = (
    'starts that failed',
    'runs that ended first',
    'damaged checkpoints',
    'left-over files',
    'surplus checkpoints',
    'values that differ',
)
# The run is started again and again. Each start is killed at the next of these moments.
MOMENTS = ('save', 'step', 'save', 'step', 'start')
# For the moments 'save' and 'step', the run first trains a random number of iterations, at most this many.
FARTHEST = 8
MOST = FARTHEST + 2 * small_run.INTERVAL + 1  # maximum iterations of a start before it is killed
SAVING, STEP = 0.02, 0.04  # approximate seconds of a save and of a step of the small run
# Seconds between two checks whether a moment has come, and maximum seconds to wait for it.
GLANCE, PATIENCE = 0.0005, 120.0


def killed_runs(count: int, seed: int, folder: Path) -> dict:
    """Kill one run `count` times with all its processes, finish it, and compare it with an undisturbed run.

    `seed` determines the moments of the kills. If a kill leaves a temporary file, it is counted as 'during a save'.
    """
    config = small_run.write_config(folder / 'small.py', MOST * (count + 1), seed)
    victim, draw = Victim(config, folder / 'killed'), random.Random(seed)
    reference = small_run.run_undisturbed(config, folder / 'whole')
    for number in track(range(count), 'kills'):
        victim.kill_at(MOMENTS[number % len(MOMENTS)], draw)
    return victim.end(reference)


class Victim:
    """A run that is killed and resumed, and counts of its kills and of the files that they left behind."""

    def __init__(self, config: Path, work_dir: Path) -> None:
        self.config, self.work_dir, self.log = config, work_dir, work_dir.with_suffix('.txt')
        self.found: Counter[str] = Counter()
        self.start_takes = 5.0

    def kill_at(self, moment: str, draw: random.Random) -> None:
        """Start the run, wait for the given moment, kill the run, and count the files that it left."""
        self.log.write_bytes(b'')
        with self.log.open('ab') as output:
            process = small_run.start(self.config, self.work_dir, output)
        try:
            self.wait_for(moment, process, draw)
        finally:
            exit_code = process.poll()
            small_run.end(process)
        if exit_code is not None:
            self.found['runs that ended first' if exit_code == 0 else 'starts that failed'] += 1
            return
        situation = 'during a save' if self.unfinished(process.pid) else 'between saves'
        checkpoints = list(self.work_dir.glob('*.pth'))
        self.found.update(['kills', situation if self.steps() else 'before a new step'])
        self.found['checkpoints read back'] += len(checkpoints)
        self.found['damaged checkpoints'] += sum(map(is_damaged, checkpoints))

    def wait_for(self, moment: str, process: subprocess.Popen, draw: random.Random) -> None:
        def wait_until(condition: Callable[[], object]) -> None:
            latest = time.monotonic() + PATIENCE
            while not condition() and process.poll() is None and time.monotonic() < latest:
                time.sleep(GLANCE)

        began = time.monotonic()
        if moment == 'start':
            time.sleep(draw.random() * self.start_takes)
            return
        wait_until(lambda: self.steps() > 0)
        self.start_takes = time.monotonic() - began
        target, late = draw.randint(1, FARTHEST), draw.random()
        wait_until(lambda: self.steps() >= target)
        if moment == 'save':
            wait_until(lambda: self.unfinished(process.pid))
            time.sleep(late * SAVING)
            # If the first save is already over, wait for the next one.
            wait_until(lambda: self.unfinished(process.pid))
        else:
            time.sleep(late * STEP)

    def steps(self) -> int:
        """Return the number of iterations since the latest start."""
        return self.log.read_bytes().count(b'Epoch(train)')

    def unfinished(self, process: int | str = '*') -> list[Path]:
        """Return the temporary files of unfinished saves, of one process or of all."""
        return list(self.work_dir.glob(f'.*.{process}.tmp'))

    def end(self, reference: Path) -> dict[str, int]:
        """Let the run finish, compare it with the undisturbed run, and return all counts."""
        self.found['starts that failed'] += small_run.run(self.config, self.work_dir) != 0
        self.found['left-over files'] = len(self.unfinished())
        self.found['surplus checkpoints'] = max(
            0, len(list(self.work_dir.glob('iter_*.pth'))) - small_run.KEPT
        )
        ends = [small_run.last_checkpoint(folder) for folder in (reference, self.work_dir)]
        self.found['values that differ'] = len(different_runs(*ends))
        return {name: self.found[name] for name in (*SEEN, *FAULTS)}
