"""Try faults and count what comes of them: tools/torture.py {kills,checkpoints,images,disk,long} [--count N] [--seed S].

kills        kill a run N times at random moments, half of them during a save, and compare its end with a run left alone
checkpoints  damage a checkpoint N times and read it with both readers
images       break N image files and read each
disk         fill the disk below N runs while they save, make room and go on
long         train N steps of a few ms and watch memory, files, threads and workers

Leaves with 1 if anything came out that must not; docs/robustness.md says what each count means.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from mmairl.engine.launch import register
from mmairl.errors import UserError, one_sentence_errors

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the projects beside the tools
from projects.faults import checkpoints, disk, images, kills, long_run

Counts = dict[str, int | float]
# What is done, how often by default, and which counts must be 0.
KINDS: dict[str, tuple[Callable[..., Counts], int, tuple[str, ...]]] = {
    'kills': (kills.killed_runs, 50, kills.FAULTS),
    'checkpoints': (checkpoints.fuzz_checkpoints, 500, ('failed',)),
    'images': (images.fuzz_images, 1000, ('escaped', 'misread', 'warnings', 'crashes', 'hangs')),
    'disk': (disk.full_disks, 5, disk.FAULTS),
    'long': (long_run.long_run, 20_000, long_run.FAULTS),
}
SHOWS_PROGRESS = ('kills', 'disk')  # the long run has a bar of its own, the others take seconds


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('kind', choices=KINDS)
    parser.add_argument('--count', type=int, help='how often; by default what docs/robustness.md was measured with')
    parser.add_argument('--seed', type=int, default=0, help='the same seed tries the same faults')
    parser.add_argument('--folder', type=Path, help='where to work, a new one; by default work_dirs/torture/KIND')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    torture, usual, faults = KINDS[args.kind]
    folder, count = args.folder or Path('work_dirs/torture') / args.kind, usual if args.count is None else args.count
    if count < 1:
        raise UserError(f'--count {count} tries nothing; give 1 or more')
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f'{folder} is not empty, and old runs in it would be gone on with; remove it or give --folder')
    register()
    counts = tried(torture, count, args, folder.resolve())
    Console().print(table(args.kind, counts, faults))
    sys.exit(1 if any(counts[name] for name in faults) else 0)


def tried(torture: Callable[..., Counts], count: int, args: argparse.Namespace, folder: Path) -> Counts:
    """The counts, with a bar where the work says how far it is."""
    if args.kind not in SHOWS_PROGRESS:
        return torture(count, args.seed, folder)
    with Progress() as bar:
        task = bar.add_task(args.kind, total=count)
        return torture(count, args.seed, folder, lambda done: bar.update(task, completed=done))


def table(kind: str, counts: Counts, faults: tuple[str, ...]) -> Table:
    """Every count, and beside those that must be 0 whether they are."""
    shown = Table(kind, 'count', 'verdict')
    for name, number in counts.items():
        verdict = '' if name not in faults else '[red]fault' if number else '[green]none'
        shown.add_row(name, f'{number:g}' if isinstance(number, float) else str(number), verdict)
    return shown


if __name__ == '__main__':
    main()
