"""Write the results of a suite as a table for the terminal, as Markdown and as JSON."""

import dataclasses
import platform
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch

from mmairl.io import write_json, write_text
from mmairl.report.table import print_table
from projects.benchmark.limits import Limits
from projects.benchmark.timing import Row

COLUMNS = (
    'what',
    'against',
    'ours',
    'theirs',
    'ratio',
    'spread',
    'images/s',
    'memory',
    'of the limit',
    'aim',
)


def machine(device: str) -> str:
    """Return the hardware, the number of CPU threads, the versions of torch and Python, and the date as text."""
    name = torch.cuda.get_device_name() if device == 'cuda' else _processor()
    threads = '' if device == 'cuda' else f', {torch.get_num_threads()} threads'
    return f'{name}{threads}; torch {torch.__version__}, Python {platform.python_version()}; {date.today()}'


def _processor() -> str:
    path = Path('/proc/cpuinfo')
    lines = path.read_text().splitlines() if path.is_file() else []
    return next(
        (line.split(':')[1].strip() for line in lines if line.startswith('model name')),
        platform.machine(),
    )


def cells(row: Row, limits: Limits | None = None) -> list[str]:
    reached = limits.reached(row) if limits else None
    memory = '' if row.ours_bytes is None else f'{_size(row.ours_bytes)} / {_size(row.peer_bytes)}'
    return [
        row.name,
        row.peer_name,
        _time(row.ours),
        _time(row.peer),
        f'{row.ratio:.2f}',
        f'{100 * row.ours_spread / row.ours:.0f} % / {100 * row.peer_spread / row.peer:.0f} %',
        f'{row.images_per_second:.0f}' if row.images_per_second else '',
        memory,
        '' if reached is None else f'{100 * reached:.0f} %',
        row.aim,
    ]


def show(rows: Sequence[Row], limits: Limits | None = None) -> None:
    table_rows = [cells(row, limits) for row in rows]
    title = 'ratio: their time divided by our time'
    print_table(COLUMNS[1:], [(name, rest) for name, *rest in table_rows], title, head=COLUMNS[0])


def write(
    rows: Sequence[Row], device: str, command: str, out: str | Path, limits: Limits | None = None
) -> tuple[Path, Path]:
    """Write the results, the command, and the machine with its limits to the files out.json and out.md."""
    record = dict(
        machine=machine(device),
        limits=None if limits is None else dataclasses.asdict(limits),
        command=command,
        rows=[
            {**dataclasses.asdict(r), 'ratio': r.ratio, 'of_limit': limits and limits.reached(r)}
            for r in rows
        ],
    )
    lines = ['| ' + ' | '.join(COLUMNS) + ' |', '|' + '---|' * len(COLUMNS)]
    lines += ['| ' + ' | '.join(cells(row, limits)) + ' |' for row in rows]
    paragraphs = [
        f'`{command}`',
        machine(device) + ('' if limits is None else f'; limits: {limits}'),
        '\n'.join(lines),
    ]
    paragraphs += dict.fromkeys(row.note for row in rows if row.note)
    return save(record, paragraphs, out)


def save(record: dict, paragraphs: Sequence[str], out: str | Path) -> tuple[Path, Path]:
    """Write the record to the file out.json and the paragraphs to out.md."""
    return write_json(f'{out}.json', record), write_text(
        f'{out}.md', '\n\n'.join(paragraphs) + '\n'
    )


def _time(seconds: float) -> str:
    return f'{seconds:.2f} s' if seconds >= 1 else f'{1000 * seconds:.3g} ms'


def _size(count: int | None) -> str:
    return (
        '–'
        if count is None
        else f'{count / 2**30:.2f} GiB'
        if count >= 2**28
        else f'{count / 2**20:.0f} MiB'
    )
