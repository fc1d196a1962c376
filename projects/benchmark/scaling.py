"""Measure how much faster two processes are than one, and what SyncBN and the settings of DDP cost.

python -m projects.benchmark --suite scaling prints a row per configuration. Each process has one thread.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from mmengine.dist import get_rank
from mmengine.model import BaseModel

from mmairl.engine.distributed import DistributedModel, start_processes
from mmairl.engine.run import register
from mmairl.signals import stop_processes
from projects.benchmark.report import machine, save
from projects.benchmark.step import Size, our_step, random_batch, siamese
from projects.benchmark.timing import timed

SIZE = Size(depth=18, image=64, batch=32, features=512, hidden=512, queue=4096)
ANSWER = 'seconds a step: '
ALONE, TOGETHER = 'one process', 'two independent processes'
# For each configuration of two processes with DDP: the kind of batch norm and the arguments of DDP.
SEVERAL = {
    'two, DDP, a batch norm each': ('BN', {}),
    'two, DDP, SyncBN': ('SyncBN', {}),
    'two, DDP, SyncBN, gradients copied into buckets': (
        'SyncBN',
        dict(gradient_as_bucket_view=False),
    ),
    'two, DDP, SyncBN, static graph': ('SyncBN', dict(static_graph=True)),
}


def measure(rounds: int = 3, steps: int = 3) -> dict[str, list[float]]:
    """Return the seconds per step of each configuration and round.

    The configurations take turns, so that other programs on the machine slow all of them.
    """
    times: dict[str, list[float]] = {}
    for _ in range(rounds):
        alone = _read([_start(1, steps)])
        pair = _read([_start(1, steps), _start(1, steps)])
        joint = _read([_start(2, steps)])
        for name, seconds in {ALONE: alone[ALONE], TOGETHER: pair[ALONE], **joint}.items():
            times.setdefault(name, []).append(seconds)
    return times


def _start(processes: int, steps: int) -> subprocess.Popen:
    several = (
        ['-m', 'mmairl.engine.launcher', f'--nproc_per_node={processes}'] if processes > 1 else []
    )
    # GPUs are hidden, because this suite measures CPU cores.
    return subprocess.Popen(
        [sys.executable, *several, '-m', 'projects.benchmark.scaling', str(steps)],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            'OMP_NUM_THREADS': '1',
            'CUDA_VISIBLE_DEVICES': '',
        },
    )


def _read(runs: Sequence[subprocess.Popen]) -> dict[str, float]:
    """Return the seconds per step that runs have printed. If two runs were measured at once, the slower run counts."""
    answers = [json.loads(run.communicate()[0].split(ANSWER)[1].splitlines()[0]) for run in runs]
    return {name: max(answer[name] for answer in answers) for name in answers[0]}


def work(steps: int) -> None:
    """Time the steps of one process in each configuration. The first process prints the medians of the slowest process."""
    register()
    torch.set_num_threads(1)
    several = int(os.environ.get('WORLD_SIZE', 1)) > 1
    if several:
        start_processes('pytorch')
    ways = (
        {name: _stepper(*how) for name, how in SEVERAL.items()}
        if several
        else {ALONE: _stepper('BN', None)}
    )
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps + 1):
        for name, step in ways.items():
            times[name].append(timed(step))
    if get_rank() == 0:
        print(
            '\n'
            + ANSWER
            + json.dumps({name: statistics.median(seconds[1:]) for name, seconds in times.items()})
        )
    stop_processes()


def _stepper(norm: str, settings: dict | None) -> Callable[[], object]:
    """Return a training step of MoCo v2+ with the hooks that act in each step. `settings` are arguments of DDP."""
    model: BaseModel = siamese(SIZE, 'mocov2plus', norm)
    if settings is not None:
        model = DistributedModel(model, **settings)
    return our_step(model, random_batch(SIZE), 'SGD')


def table(times: dict[str, list[float]]) -> str:
    """Return a Markdown table. The efficiency is the speed of a process, divided by its speed if it runs alone."""
    alone = statistics.median(times[ALONE])
    lines = ['| way | a step | spread | images/s in all | efficiency |', '|' + '---|' * 5]
    for name, seconds in times.items():
        median, processes = statistics.median(seconds), 1 if name == ALONE else 2
        spread = 100 * (max(seconds) - min(seconds)) / median
        speed = processes * SIZE.batch / median
        lines.append(
            f'| {name} | {1000 * median:.0f} ms | {spread:.0f} % | {speed:.0f} | {100 * alone / median:.0f} % |'
        )
    return '\n'.join(lines)


def report(rounds: int, steps: int, command: str, out: Path) -> tuple[Path, Path]:
    """Measure, print, and write out.json and out.md."""
    times = measure(rounds, steps)
    tables = [
        f'A step of MoCo v2+, {SIZE} per process, one thread per process. The configurations take turns.',
        table(times),
    ]
    print('\n\n'.join(tables))
    record = dict(machine=machine('cpu'), command=command, seconds=times)
    return save(record, [f'`{command}`', machine('cpu'), *tables], out)


if __name__ == '__main__':  # this process was started by `measure`
    work(int(sys.argv[-1]))
