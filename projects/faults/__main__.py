"""Inject faults, count outcomes: python -m projects.faults {kills,checkpoints,images,disk,long} [--count N] [--seed S].

kills        kill a run N times at random moments, two fifths of the times during a save, and compare it with an undisturbed run
checkpoints  damage a checkpoint N times and read it
images       damage N image files and read each
disk         fill the disk while each of N runs saves, free space and resume the run
long         train N steps of a few ms and check whether memory, files, threads or workers grow

The exit code is 1 if a count that must be 0 is larger. results/2026-11-21_faults.md explains the counts.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.report.table import print_table
from projects.faults import checkpoints, disk, images, kills, long_run

# For each kind of fault: the function that injects it, the default number of repetitions, and the counts that must be 0.
KINDS: dict[str, tuple[Callable[..., dict], int, tuple[str, ...]]] = {
    'kills': (kills.killed_runs, 50, kills.FAULTS),
    'checkpoints': (checkpoints.fuzz_checkpoints, 500, ('failed',)),
    'images': (images.fuzz_images, 1000, ('escaped', 'misread', 'warnings', 'crashes', 'hangs')),
    'disk': (disk.full_disks, 5, disk.FAULTS),
    'long': (long_run.long_run, 20_000, long_run.FAULTS),
}


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('kind', choices=KINDS)
    parser.add_argument(
        '--count',
        type=int,
        help='repeat this many times (default: as in results/2026-11-21_faults.md)',
    )
    parser.add_argument(
        '--seed', type=int, default=0, help='choose the random faults by this seed (default: 0)'
    )
    parser.add_argument(
        '--folder',
        type=Path,
        help='write runs and files to this new folder (default: work_dirs/faults/KIND)',
    )
    args = parser.parse_args()
    try_faults, usual, faults = KINDS[args.kind]
    count = usual if args.count is None else args.count
    folder = (args.folder or Path('work_dirs/faults') / args.kind).resolve()
    if count < 1:
        raise UserError(f"--count: must be positive ('{count}'); set 1 or more")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(
            f'{folder}: is not empty, and its old runs would be resumed; remove the folder or set --folder'
        )
    register()
    counts = try_faults(count, args.seed, folder)
    verdicts = {
        name: ('fault' if number else 'none') if name in faults else ''
        for name, number in counts.items()
    }
    rows = [(name, [f'{number:g}', verdicts[name]]) for name, number in counts.items()]
    print_table(('count', 'verdict'), rows, head=args.kind)
    sys.exit(1 if any(counts[name] for name in faults) else 0)


if __name__ == '__main__':
    main()
