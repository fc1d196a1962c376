"""Measure ours beside its peers in one process: tools/benchmark.py --suite NAME [--device cuda].

--suite scaling runs two processes, and prints what a written model says of many GPUs.
--suite detection --checkpoint CKPT asks something else: whether a detector learns, on drawn images, from a ResNet-18 of ours.
"""

import argparse
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the projects beside the tools
from mmairl.engine.launch import register
from mmairl.errors import UserError, one_sentence_errors
from projects.benchmark import scaling
from projects.benchmark.limits import measure
from projects.benchmark.report import machine, terminal, write
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import compare

DEFAULT = Path('work_dirs/benchmark')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--suite', choices=[*SUITES, 'scaling', 'all', 'detection'], default='all')
    parser.add_argument('--checkpoint', help='detection: the ResNet-18 to start from')
    parser.add_argument('--steps', type=int, default=300, help='detection: of training')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--rounds', type=int, default=5, help='times that each side is run, in turn')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to see that it runs')
    parser.add_argument('--out', type=Path, help='OUT.json and OUT.md; by default work_dirs/benchmark/SUITE_DEVICE')
    return parser.parse_args()


def detection(args: argparse.Namespace) -> None:
    """AP as training goes, in the terminal and as CSV."""
    from mmairl.report.files import save_table
    from projects.benchmark.detection import learning_curve  # mmdet is optional

    if not args.checkpoint:
        raise UserError('--suite detection starts from a pre-trained ResNet-18; give --checkpoint')
    out = args.out or Path('work_dirs/benchmark/detection')
    curve = learning_curve(args.checkpoint, Path('work_dirs/benchmark/run'), args.steps, max(1, args.steps // 3))
    table = Table('iteration', 'AP', 'AP50', 'AP75')
    for step, scores in curve.items():
        table.add_row(str(step), *(f'{value:.1f}' for value in scores.values()))
    Console().print(table)
    print(save_table(('iteration', 'AP', 'AP50', 'AP75'), [(s, *v.values()) for s, v in curve.items()], out))


def two_processes(args: argparse.Namespace) -> None:
    """One process against two, each on one thread; then the model of 8, 64 and 512 GPUs."""
    command = f'tools/benchmark.py --suite scaling --rounds {args.rounds}' + (' --quick' if args.quick else '')
    print(*scaling.report(args.rounds, 1 if args.quick else 5, command, args.out or DEFAULT / 'scaling_cpu'))


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('this machine has no GPU that torch can use; leave out --device cuda')
    register()
    alone = dict(detection=detection, scaling=two_processes)  # which compare no two sides
    if args.suite in alone:
        alone[args.suite](args)
        return
    console, rows, limits = Console(), [], measure(args.device)
    console.print(f'{machine(args.device)}; limits: {limits}')
    for name in SUITES if args.suite == 'all' else [args.suite]:
        for case in SUITES[name](args.device, args.quick):
            with console.status(f'{case.name}, against {case.peer_name}'):
                rows.append(compare(case, args.rounds, args.device))
    console.print(terminal(rows, limits))
    command = f'tools/benchmark.py --suite {args.suite} --device {args.device} --rounds {args.rounds}'
    out = args.out or DEFAULT / f'{args.suite}_{args.device}'
    print(*write(rows, args.device, command + (' --quick' if args.quick else ''), out, limits))
    if args.suite == 'all':
        args.out = out.with_name('scaling_cpu')
        two_processes(args)


if __name__ == '__main__':
    main()
