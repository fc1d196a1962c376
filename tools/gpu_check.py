"""The first visit to a GPU in one command, at most 20 minutes: tools/gpu_check.py, or make gpu.

Environment, the GPU tests, the demo, the throughput of a step, the loader and other libraries' steps; each stage prints and
saves as it goes, and OUT/gpu_check.html is one page of it.
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
from projects.benchmark.gpu import visit


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=['cuda', 'cpu'], default='cuda', help='cpu: a rehearsal')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, to see that it runs')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/gpu_check'))
    args = parser.parse_args()
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('this machine has no GPU that torch can use; --device cpu --quick rehearses the visit')
    out, home = args.out.absolute(), Path(__file__).resolve().parents[1]
    os.chdir(home)
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(home), os.environ.get('PYTHONPATH')]))
    visit(args.device, args.quick, out)
    print(f'the page: {out / "gpu_check.html"}')


if __name__ == '__main__':
    main()
