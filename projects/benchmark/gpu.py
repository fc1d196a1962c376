"""The first visit to a GPU, stage by stage: what it is, whether our runs are right on it, and how fast it is.

Each stage, and in a stage each way of a step, is a process of its own that leaves its lines in a folder as they come. So one
that fails or is cut off loses no other, and none compiles with what another has left.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from mmairl.data.preprocess import float32_precision
from mmairl.errors import UserError
from mmairl.io import write_json
from mmairl.report.page import Page
from mmairl.report.table import html_table
from mmairl.signals import end_with_parent
from projects.benchmark.report import machine
from projects.benchmark.step import ON_GPU, TINY, Size, our_step, random_batch, siamese
from projects.benchmark.timing import peak_bytes, timed

# What is added from one line of the throughput to the next.
WAYS = {
    'float32': dict(precision='float32'),
    'TF32': dict(precision='tf32'),
    'bfloat16': dict(precision='bfloat16'),
    '+ channels last, fused SGD': dict(precision='bfloat16', channels_last=True, fused=True),
    '+ compile': dict(precision='bfloat16', channels_last=True, fused=True, compile=True),
    '+ CUDA graphs': dict(
        precision='bfloat16', channels_last=True, fused=True, compile=dict(mode='reduce-overhead')
    ),
}
QUICK = ('float32', 'bfloat16')
BATCHES = (128, 512, 1024)
FASTEST = 'the fastest of these'
LEAVES = dict(peers='step')  # files by another name than the stage's
KERNELS = 10  # of the profile, the costliest


def commands(device: str, quick: bool, out: Path) -> dict[str, list[tuple[list[str], int]]]:
    """The stages by name: the words behind `python` of their processes, and the seconds that each may take."""
    benchmark = ['-m', 'projects.benchmark', '--device', device, *(['--quick'] if quick else [])]
    few = [
        'train_dataloader.dataset.count=512',
        'evaluation.train.count=600',
        'evaluation.test.count=120',
    ]
    demo = ['--cfg-options', 'train_cfg.max_epochs=1', *few] if quick else []
    steps = [
        '-m',
        'projects.benchmark.gpu',
        device,
        'tiny' if quick else 'full',
        str(out / 'ways.txt'),
    ]
    ways, batches = (QUICK, ()) if quick else (WAYS, BATCHES)
    return {
        'environment': [(['-m', 'torch.utils.collect_env'], 40)],
        'tests': [
            (
                [
                    '-m',
                    'pytest',
                    '-m',
                    'gpu',
                    'tests/softgpu',
                    *(['--collect-only'] if quick else []),
                ],
                400,
            )
        ],
        'demo': [
            (['tools/demo.py', '--seed', '0', '--work-dir', str(out / 'demo_run'), *demo], 300)
        ],
        'ways': [([*steps, name], 180 if 'compile' in WAYS[name] else 60) for name in ways],
        'batches': [([*steps, FASTEST, str(batch)], 150) for batch in batches],
        'loader': [
            ([*benchmark, '--suite', 'loader', '--rounds', '2', '--out', str(out / 'loader')], 300)
        ],
        'peers': [
            ([*benchmark, '--suite', 'step', '--rounds', '2', '--out', str(out / 'step')], 300)
        ],
    }


def visit(device: str, quick: bool, out: Path, only: Sequence[str] = ()) -> None:
    """These stages in turn, or all, anew; their lines and the page are written after each, with those of earlier calls."""
    kept, record = out / 'gpu_check.json', Console()
    found = json.loads(kept.read_text())['stages'] if only and kept.is_file() else {}
    stages = commands(device, quick, out)
    for name in only or stages:
        record.rule(name)
        for old in out.glob(f'{LEAVES.get(name, name)}.*'):
            old.unlink()
        path, start = out / f'{name}.txt', time.perf_counter()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        codes = [run([sys.executable, *words], path, limit) for words, limit in stages[name]]
        code = next((code for code in codes if code), 0)
        words = [' '.join(['python', *words]) for words, _ in stages[name]]
        found[name] = dict(commands=words, code=code, seconds=time.perf_counter() - start)
        record.print(
            ''.join(path.read_text(errors='replace').splitlines(keepends=True)[-12:]), markup=False
        )
        write_json(kept, dict(machine=machine(device), stages=found, **results(out)))
        page(device, found, out)
    if failed := [name for name in only or stages if found[name]['code']]:
        raise UserError(f'not all of it went well: {", ".join(failed)}; their lines are in {out}')


def run(command: list[str], path: Path, limit: int) -> int | str:
    """How a process ended. Its lines are added to the file; what it has started, and its temporary files, go with it."""
    scratch = path.parent / 'temporary'
    shutil.rmtree(scratch, ignore_errors=True)  # of a call that was killed
    scratch.mkdir()
    env = {**os.environ, 'PYTHONUNBUFFERED': '1', 'TMPDIR': str(scratch)}
    with path.open('a') as file:
        told = dict(
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        process = subprocess.Popen(command, env=env, **told)
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            file.write(f'\ncut off after {limit} s: {" ".join(command[1:])}\n')
            return f'cut off after {limit} s'
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            shutil.rmtree(scratch, ignore_errors=True)


def results(out: Path) -> dict[str, list[dict]]:
    """The measured steps whose lines are whole, and the rows that the benchmark's suites have left."""
    files = {name: out / f'{name}.json' for name in ('loader', 'step')}
    return dict(
        rows=[*rows(out / 'ways.txt'), *rows(out / 'batches.txt')],
        **{
            name: json.loads(file.read_text())['rows']
            for name, file in files.items()
            if file.is_file()
        },
    )


def rows(path: Path) -> list[dict]:
    lines = path.read_text(errors='replace').splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.startswith('{') and line.endswith('}')]


def page(device: str, found: dict[str, dict], out: Path) -> Path:
    made = Page(
        'The first visit to a GPU' if device == 'cuda' else 'A rehearsal on a CPU',
        lead=machine(device),
    )
    stages = [
        (name, [str(stage['code'] or 'passed'), f'{stage["seconds"]:.0f} s'])
        for name, stage in found.items()
    ]
    made.add(
        'Stages',
        'The lines of each are in a file beside this page.',
        html_table(['ended', 'took'], stages),
    )
    measured = results(out)
    if steps := measured['rows']:
        keys = ('batch', 'images_per_second', 'gigabytes', 'error')
        cells = [
            (row['way'], ['' if row.get(key) is None else str(row[key])[:60] for key in keys])
            for row in steps
        ]
        head = ['batch', 'images/s', 'GB at most', 'why not']
        made.add(
            'Throughput',
            'Whole steps of MoCo v2+ on images that are there already.',
            html_table(head, cells),
        )
    if profiled := [row for row in steps if row['kernels']]:
        kernels = [(name, [f'{share:.0%}']) for name, share in profiled[-1]['kernels'].items()]
        text = f'The costliest of a step ({profiled[-1]["way"]}, batch {profiled[-1]["batch"]}).'
        made.add('Kernels', text, html_table(["of the step's time"], kernels))
    if loaded := [row for row in measured.get('loader', []) if row['name'].startswith('loader')]:
        core, fastest = (
            loaded[0]['images_per_second'],
            max((row['images_per_second'] or 0 for row in steps), default=0),
        )
        said = f'One core reads images and makes two views of each for {core:.0f} images a second.'
        if fastest:
            said += f' The fastest step takes {fastest:.0f}, as many as {math.ceil(fastest / core)} cores make.'
        made.add('The loader against the step', said, _compared(loaded))
    if peers := measured.get('step'):
        made.add(
            "Other libraries' steps",
            'Ratio: how many times as long as ours theirs takes.',
            _compared(peers),
        )
    return made.write(out / 'gpu_check.html')


def _compared(rows: list[dict]) -> str:
    cells = [
        (
            f'{row["name"]}, against {row["peer_name"]}',
            [f'{row[key]:.3g}' for key in ('ours', 'peer', 'ratio')],
        )
        for row in rows
    ]
    return html_table(['ours, s', 'theirs, s', 'ratio'], cells)


def measured(size: Size, device: str, how: dict, name: str) -> dict:
    row = dict(way=name, batch=size.batch, images_per_second=None, gigabytes=None, kernels={})
    try:
        with float32_precision(how.get('precision')):
            one = our_step(
                siamese(size, 'mocov2plus').to(device), random_batch(size, device), 'SGD', **how
            )

            for _ in range(3):
                one()
            seconds, held = min(timed(one, device) for _ in range(5)), peak_bytes(one, device)
            row.update(
                images_per_second=round(size.batch / seconds, 1), kernels=profile(one, device)
            )
            return {**row, 'gigabytes': held and round(held / 1e9, 2)}
    except Exception as error:  # what does not run on this device is a line, too
        return {**row, 'error': f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'}


def profile(one: Callable[[], object], device: str) -> dict[str, float]:
    """The costliest kernels of a step, each with its share."""
    with torch.profiler.profile() as seen:
        one()
    on_device = 'self_device_time_total' if device == 'cuda' else 'self_cpu_time_total'
    events = sorted(seen.key_averages(), key=lambda event: -getattr(event, on_device))
    total = sum(getattr(event, on_device) for event in events) or 1
    return {event.key[:80]: getattr(event, on_device) / total for event in events[:KERNELS]}


if __name__ == '__main__':  # one way of a step, and the file of those that were measured before
    from mmairl.engine.run import register

    register()
    device, sizes, before, name, *batch = sys.argv[1:]
    size = TINY if sizes == 'tiny' else ON_GPU
    if name == FASTEST:
        name = max(rows(Path(before)), key=lambda row: row['images_per_second'] or 0)['way']
    size = replace(size, batch=int(batch[0]) if batch else size.batch)
    print(json.dumps(measured(size, device, WAYS[name], name)), flush=True)
