"""Check and measure mmairl on a GPU: python -m projects.benchmark.gpu_visit, or make gpu.

Jobs run in order of priority, each in its own process. Each result is appended to OUT/results.jsonl as soon as it is known,
so no result is lost if the command is killed. OUT/log.txt contains the output of the jobs, and OUT/index.html is a page of
the results.

For a target machine without a package index, first download the wheels on another machine and copy them. On the target
machine, the command installs the wheels before it runs the jobs:

    python -m projects.benchmark.gpu_visit --prepare wheels --installed freeze.txt   # freeze.txt: the target's `pip freeze`
    python3 -m projects.benchmark.gpu_visit --wheels wheels --out visit              # on the target; at most 560 s
    python3 -m projects.benchmark.gpu_visit --wheels wheels --out again --after visit/results.jsonl --seconds 200
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = float(os.environ.setdefault('GPU_VISIT_START', str(time.monotonic())))
ROOT = Path(__file__).resolve().parents[3]
SCRATCH = Path(tempfile.gettempdir()) / 'mmairl-gpu-visit'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/gpu_visit'),
        help='add results to this folder (default: work_dirs/gpu_visit)',
    )
    parser.add_argument(
        '--seconds',
        type=float,
        default=550,
        help='stop all jobs after this many seconds, including the installation of wheels (default: 550)',
    )
    parser.add_argument(
        '--device',
        choices=['cuda', 'software', 'cpu'],
        default='cuda',
        help='choose the device; cpu and software (an emulated GPU) rehearse at tiny sizes (default: cuda)',
    )
    parser.add_argument('--only', nargs='+', metavar='JOB', help='run these jobs (default: all)')
    parser.add_argument(
        '--after',
        type=Path,
        metavar='RESULTS',
        help='skip jobs that have succeeded according to this results.jsonl',
    )
    parser.add_argument(
        '--patience',
        type=float,
        default=1,
        help="multiply the jobs' time limits, for rehearsals on a busy machine (default: 1)",
    )
    parser.add_argument('--prepare', type=Path, metavar='DIR', help='download wheels and exit')
    parser.add_argument(
        '--installed',
        type=Path,
        metavar='FREEZE',
        help='with --prepare: leave out packages in this output of pip freeze',
    )
    parser.add_argument(
        '--wheels',
        type=Path,
        metavar='DIR',
        help='first install the wheels of DIR in a scratch folder',
    )
    parser.add_argument('--list', action='store_true', help='print the jobs and exit')
    parser.add_argument(
        '--page', action='store_true', help='only write OUT/index.html from OUT/results.jsonl'
    )
    # Visit.start passes --job if jobs cannot be forked. The job then runs in this process.
    parser.add_argument('--job', help=argparse.SUPPRESS)
    return parser.parse_args()


def set_up(args: argparse.Namespace) -> None:
    """Prepare paths and the environment. Call this before the first import of torch."""
    os.chdir(ROOT)
    folders = [str(ROOT)]
    if args.wheels:
        site = SCRATCH / 'site'
        if not site.exists():
            install(args.wheels, site)
        folders.append(str(site))
    if args.device == 'software':
        folders.append(str(ROOT / 'tests/softgpu'))
    sys.path[:0] = folders
    inherited = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([*folders, *([inherited] if inherited else [])])
    if args.device == 'software':
        build = 'import build_runtime; print(build_runtime.software_gpu())'
        done = subprocess.run(
            [sys.executable, '-c', build], check=True, stdout=subprocess.PIPE, text=True
        )
        os.environ['SOFTGPU'] = done.stdout.strip()
        import softgpu  # noqa: F401  must precede torch
    # When mmengine is imported, it looks for GPUs. This variable makes torch use NVML, so the search does not start CUDA. If
    # CUDA were started in this process, forked processes could not use it.
    os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'] = '1'
    os.environ['PYTHONUNBUFFERED'] = '1'
    os.environ['PYTHONWARNINGS'] = 'ignore'
    os.environ['HF_HUB_OFFLINE'] = '1'
    os.environ.setdefault('TORCHINDUCTOR_CACHE_DIR', str(SCRATCH / 'inductor'))


def install(wheels: Path, site: Path) -> None:
    """Install wheels in a temporary folder, and rename it to `site`, so that no interrupted installation is ever used."""
    files = sorted(map(str, wheels.glob('*.whl')))
    if not files:
        sys.exit(
            f'gpu_visit: --wheels: the folder has no wheels ({str(wheels)!r}); create them with --prepare'
        )
    SCRATCH.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix='installing-', dir=SCRATCH))
    pip = [sys.executable, '-m', 'pip', 'install', '-q', '--no-index', '--no-deps']
    subprocess.run([*pip, '--target', partial, *files], check=True)
    partial.rename(site)


def main() -> int:
    args = parse_args()
    args.out = args.out.absolute()
    for name in ('wheels', 'after', 'prepare', 'installed'):
        if getattr(args, name):
            setattr(args, name, getattr(args, name).absolute())
    set_up(args)
    if args.prepare:
        from projects.benchmark.gpu_visit.wheels import download

        return download(args.prepare, args.installed)
    if args.page:
        from projects.benchmark.gpu_visit.results import write_page

        print(write_page(args.out))
        return 0
    from projects.benchmark.gpu_visit.plan import PLAN
    from projects.benchmark.gpu_visit.schedule import (
        Context,
        Visit,
        choose,
        finished_jobs,
        run_here,
    )

    unknown = set(args.only or ()) - {job.name for job in PLAN}
    if unknown:
        sys.exit(f'gpu_visit: --only names unknown jobs ({", ".join(sorted(unknown))}); see --list')
    if args.list:
        print('\n'.join(f'{job.name:20} at most {job.limit:.0f} s' for job in PLAN))
        return 0
    if args.device == 'cuda':
        import torch

        if not torch.cuda.is_available():
            sys.exit('gpu_visit: torch finds no GPU; to rehearse, set --device software or cpu')
    context = Context(args.device, args.out, SCRATCH, START, args.patience)
    if args.job:
        return run_here(next(job for job in PLAN if job.name == args.job), context)
    done = finished_jobs(args.after) if args.after else set()
    return Visit(choose(PLAN, done, args.only), context, args.seconds).run()


if __name__ == '__main__':
    sys.exit(main())
