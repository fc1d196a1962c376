"""Compare the speed of mmairl with that of other libraries: python -m projects.benchmark --suite NAME [--device cuda].

Both sides of a comparison run in this process, in turn, so that other programs slow both.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from mmairl.engine.run import register
from mmairl.errors import UserError, one_sentence_errors
from mmairl.hardware import keep_freed_memory
from projects.benchmark.suites import SUITES
from projects.benchmark.timing import compare


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--suite', choices=SUITES, required=True, help='choose the suite')
    parser.add_argument(
        '--device', choices=['cpu', 'cuda'], default='cpu', help='choose the device (default: cpu)'
    )
    parser.add_argument(
        '--rounds', type=int, default=5, help='run each side this many times, in turn (default: 5)'
    )
    parser.add_argument(
        '--quick', action='store_true', help='use tiny sizes, only to check that the suite runs'
    )
    parser.add_argument(
        '--out', type=Path, help='write the results to this JSON file (default: print them only)'
    )
    return parser.parse_args()


@one_sentence_errors
def main() -> None:
    args = parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError(
            '--device cuda: torch finds no GPU on this machine; leave it out', code='no-gpu'
        )
    register()
    if args.device == 'cpu':
        keep_freed_memory()  # as mmairl's training does; this setting affects all code in this process
    rows = []
    for case in SUITES[args.suite](args.device, args.quick):
        row = compare(case, args.rounds, args.device)
        rows.append(asdict(row) | dict(ratio=row.ratio))
        print(
            f'{row.ratio:5.2f} times as fast as {row.peer_name}: {row.name} ({1000 * row.ours:.1f} ms)',
            flush=True,
        )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(rows, indent=1))


if __name__ == '__main__':
    main()
