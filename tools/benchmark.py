"""Measure ours beside its peers in one process: tools/benchmark.py --suite {knn,linear,analysis,all} [--device cuda]."""

import argparse
from pathlib import Path

import torch
from rich.console import Console

from mmairl.benchmark.report import machine, terminal, write
from mmairl.benchmark.suites import SUITES
from mmairl.benchmark.timing import compare
from mmairl.engine.launch import one_sentence_errors, register
from mmairl.errors import UserError


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--suite', choices=[*SUITES, 'all'], default='all')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu')
    parser.add_argument('--rounds', type=int, default=5, help='times that each side is run, in turn')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to see that it runs')
    parser.add_argument('--out', type=Path, help='OUT.json and OUT.md; by default work_dirs/benchmark/SUITE_DEVICE')
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('this machine has no GPU that torch can use; leave out --device cuda')
    register()
    console, rows = Console(), []
    console.print(machine(args.device))
    for name in SUITES if args.suite == 'all' else [args.suite]:
        for case in SUITES[name](args.device, args.quick):
            with console.status(f'{case.name}, against {case.peer_name}'):
                rows.append(compare(case, args.rounds, args.device))
    console.print(terminal(rows))
    command = f'tools/benchmark.py --suite {args.suite} --device {args.device} --rounds {args.rounds}'
    out = args.out or Path('work_dirs/benchmark') / f'{args.suite}_{args.device}'
    print(*write(rows, args.device, command + (' --quick' if args.quick else ''), out))


if __name__ == '__main__':
    main()
