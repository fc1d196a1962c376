"""Compare the speed of mmairl with that of other libraries: python -m projects.benchmark --suite NAME [--device cuda].

mmairl's code and the code of the other library run in one process, with two exceptions: --suite scaling compares one process
with two, and --suite crops can run in several processes (--processes), each on one thread. --suite detection --checkpoint
CKPT trains a detector that starts from a ResNet-18 of mmairl on synthetic images, and shows whether the detector learns.
"""

if __name__ == '__main__':
    from mmairl.cli import prepare

    prepare()  # prepares the process before the imports below, which take seconds

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch
from mmengine.dist import is_main_process
from rich.console import Console

from mmairl.cli.flags import positive
from mmairl.engine.distributed import start_processes
from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.hardware import keep_freed_memory
from mmairl.report.table import print_table, save_table
from mmairl.signals import stop_processes
from projects.benchmark import scaling
from projects.benchmark.limits import measure
from projects.benchmark.report import machine, show, write
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import compare

DEFAULT = Path('work_dirs/benchmark')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        '--suite',
        choices=[*SUITES, 'scaling', 'all', 'detection'],
        default='all',
        help='choose the suite (default: all)',
    )
    parser.add_argument('--checkpoint', help='detection: start from this ResNet-18 (required)')
    parser.add_argument(
        '--steps',
        type=positive,
        default=300,
        help='detection: train this many steps (default: 300)',
    )
    parser.add_argument(
        '--device', choices=['cpu', 'cuda'], default='cpu', help='choose the device (default: cpu)'
    )
    parser.add_argument(
        '--processes',
        type=positive,
        default=1,
        help='crops: take a step in this many processes (default: 1)',
    )
    parser.add_argument(
        '--rounds',
        type=positive,
        default=5,
        help='run each of the two compared implementations this many times, in turn (default: 5)',
    )
    parser.add_argument(
        '--quick', action='store_true', help='use tiny sizes, only to check that the suite runs'
    )
    parser.add_argument(
        '--out',
        type=Path,
        help='write OUT.json and OUT.md (default: work_dirs/benchmark/SUITE_DEVICE)',
    )
    return parser.parse_args()


def detection(args: argparse.Namespace) -> None:
    """Train a detector, print its average precision (AP) during training, and write it as CSV."""
    from projects.benchmark.detection import SCORES, learning_curve  # mmdet is optional

    if not args.checkpoint:
        raise UserError(
            '--checkpoint: required for --suite detection; name a pre-trained ResNet-18'
        )
    rows = learning_curve(args.checkpoint, DEFAULT / 'run', args.steps, max(1, args.steps // 3))
    cells = [(str(step), [f'{value:.1f}' for value in scores]) for step, *scores in rows]
    print_table(SCORES, cells, head='iteration')
    print(save_table(('iteration', *SCORES), rows, args.out or DEFAULT / 'detection'))


def two_processes(args: argparse.Namespace) -> None:
    """Compare the speed of one process with the speed of two, each on one thread."""
    command = f'python -m projects.benchmark --suite scaling --rounds {args.rounds}' + (
        ' --quick' if args.quick else ''
    )
    print(
        *scaling.report(
            args.rounds, 1 if args.quick else 5, command, args.out or DEFAULT / 'scaling_cpu'
        )
    )


def compare_with_peers(args: argparse.Namespace) -> None:
    """Run the cases of the suites, and write the results after each case.

    Raises:
        UserError: If mmairl and the other library compute different results in a case. This case is not timed.
    """
    console, rows, differing, limits = (
        Console(quiet=not is_main_process()),
        [],
        [],
        measure(args.device),
    )
    console.print(f'{machine(args.device)}; limits: {limits}')
    command = f'python -m projects.benchmark --suite {args.suite} --device {args.device} --rounds {args.rounds}'
    command += f' --processes {args.processes}' * (args.processes > 1) + ' --quick' * args.quick
    out = (
        args.out
        or DEFAULT / f'{args.suite}_{args.device}{f"_{args.processes}" * (args.processes > 1)}'
    )
    for name in SUITES if args.suite == 'all' else [args.suite]:
        for case in SUITES[name](args.device, args.quick):
            with console.status(f'{case.name}, against {case.peer_name}'):
                try:
                    rows.append(compare(case, args.rounds, args.device))
                except AssertionError as error:
                    differing.append(
                        f'{case.name}, against {case.peer_name}: {" ".join(str(error).split())}'
                    )
            if is_main_process():
                written = write(rows, args.device, command, out, limits)
    if is_main_process():
        show(rows, limits)
        print(*written)
    if differing:
        raise UserError(
            f'the two compared implementations compute different results and were not timed: {"; ".join(differing)}'
        )


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('--device cuda: torch finds no GPU on this machine; leave it out')
    if args.processes > 1 and args.suite != 'crops':
        raise UserError(
            '--processes: requires --suite crops; leave it out (--suite scaling always runs two processes)'
        )
    if args.processes > 1 and 'WORLD_SIZE' not in os.environ:
        launcher = [
            sys.executable,
            '-m',
            'mmairl.engine.launcher',
            f'--nproc_per_node={args.processes}',
        ]
        start = [*launcher, '-m', 'projects.benchmark', *sys.argv[1:]]
        sys.exit(subprocess.run(start, env={'OMP_NUM_THREADS': '1', **os.environ}).returncode)
    start_processes('pytorch' if args.processes > 1 else 'none')
    register()
    torch.backends.cudnn.benchmark = True  # same setting as in the configs of mmairl
    if args.device == 'cpu':
        keep_freed_memory()  # as mmairl's training does; this setting affects all code in this process
    if args.suite == 'detection':
        detection(args)
    elif args.suite == 'scaling':
        two_processes(args)
    else:
        compare_with_peers(args)
        if args.suite == 'all':
            args.out = args.out and args.out.with_name('scaling_cpu')
            two_processes(args)
    stop_processes()


if __name__ == '__main__':
    main()
