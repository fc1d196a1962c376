"""Measure on a GPU: python -m projects.benchmark.gpu_check, or make gpu (NO_INSTALL=1 installs nothing).

Environment, the GPU tests, the demo, the throughput of a step way by way and batch by batch, the loader and other libraries'
steps. Each stage takes ten minutes at most, prints and saves as it goes, and OUT/gpu_check.html is one page of it; `--stage`
runs some of them and adds to the page. `--wheels` lists what to carry to a machine that reaches no package index:

    python -m projects.benchmark.gpu_check --wheels > carry.txt      # --wheels FILE: without what `pip freeze` listed there
    pip download --no-deps -d wheels -r carry.txt                    # then there: pip install --no-index --no-deps wheels/*
"""

if __name__ == '__main__':
    from mmairl.cli import prepare

    prepare()  # before the imports below, which take seconds

import argparse
import os
from pathlib import Path

import torch

from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_text
from projects.benchmark.gpu import commands, visit
from projects.benchmark.wheels import wheels

STAGES = list(commands('cpu', True, Path()))


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--device',
        choices=['cuda', 'cpu'],
        default='cuda',
        help='choose the device; cpu rehearses the visit (default: cuda)',
    )
    parser.add_argument(
        '--quick', action='store_true', help='use tiny sizes to check that it runs (default: off)'
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/gpu_check'),
        help='write here (default: work_dirs/gpu_check)',
    )
    parser.add_argument(
        '--stage',
        nargs='+',
        default=(),
        choices=STAGES,
        help='run these stages only (default: all)',
    )
    parser.add_argument(
        '--wheels', nargs='?', const='', metavar='FILE', help='list the packages to carry and exit'
    )
    args = parser.parse_args()
    if args.wheels is not None:
        print('\n'.join(wheels(read_text(args.wheels) if args.wheels else '')))
        return
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError(
            'this machine has no GPU that torch can use; --device cpu --quick rehearses the visit'
        )
    out, home = args.out.absolute(), Path(__file__).resolve().parents[2]
    os.chdir(home)
    os.environ['PYTHONPATH'] = os.pathsep.join(
        filter(None, [str(home), os.environ.get('PYTHONPATH')])
    )
    visit(args.device, args.quick, out, args.stage)
    print(f'the page: {out / "gpu_check.html"}')


if __name__ == '__main__':
    main()
