"""The first visit to a GPU: tools/gpu_check.py, or make gpu; it installs nothing, and make gpu NO_INSTALL=1 does not either.

Environment, the GPU tests, the demo, the throughput of a step way by way and batch by batch, the loader and other libraries'
steps. Each stage takes ten minutes at most, prints and saves as it goes, and OUT/gpu_check.html is one page of it; `--stage`
runs some of them and adds to the page. `--wheels` lists what to carry to a machine that reaches no package index:

    python tools/gpu_check.py --wheels > carry.txt      # --wheels FILE: less what `pip freeze` has listed there
    pip download --no-deps -d wheels -r carry.txt       # then there: pip install --no-index --no-deps wheels/*
"""

import argparse
import os
import sys
from pathlib import Path

import mmairl  # noqa: F401  before torch, which takes seconds

# isort: split
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the projects beside the tools
from mmairl.errors import UserError, one_sentence_errors
from mmairl.io import read_text
from projects.benchmark.gpu import commands, visit
from projects.benchmark.wheels import wheels

STAGES = list(commands('cpu', True, Path()))


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=['cuda', 'cpu'], default='cuda', help='cpu: a rehearsal')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to see that it runs')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/gpu_check'))
    parser.add_argument('--stage', nargs='+', default=(), choices=STAGES, help='these alone; by default all, anew')
    parser.add_argument('--wheels', nargs='?', const='', metavar='FILE', help='list the packages to carry, and end')
    args = parser.parse_args()
    if args.wheels is not None:
        print('\n'.join(wheels(read_text(args.wheels) if args.wheels else '')))
        return
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('this machine has no GPU that torch can use; --device cpu --quick rehearses the visit')
    out, home = args.out.absolute(), Path(__file__).resolve().parents[1]
    os.chdir(home)
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(home), os.environ.get('PYTHONPATH')]))
    visit(args.device, args.quick, out, args.stage)
    print(f'the page: {out / "gpu_check.html"}')


if __name__ == '__main__':
    main()
