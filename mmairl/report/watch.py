"""A run as it goes: its health page, written again and again, and the same on a terminal, without a server or a port."""

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mmairl.engine.launch import in_use
from mmairl.engine.scalars import Curve, config_of, read_scalars
from mmairl.report.health_page import measured, state_of, write_health_page
from mmairl.report.table import rich_table

SECONDS = 10  # between two looks
STYLES = {'bad': 'bold red', 'watch': 'yellow', 'good': 'green'}


def watch(work_dir: str | Path, out: str | Path, seconds: float = SECONDS) -> Path:
    """Follow a run until nobody holds its work dir: its page at `out`, and its state on the terminal.

    >>> watch('work_dirs/mocov2plus_r50_200e', 'health.html')  # doctest: +SKIP
    """
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            goes_on = in_use(work_dir)
            page = write_health_page(work_dir, out, follow=SECONDS if goes_on else 0)
            live.update(view(work_dir), refresh=True)
            if not goes_on:
                break
            time.sleep(seconds)
    if not console.is_terminal:  # where Live ends within a line
        console.line()
    return page


def view(work_dir: str | Path) -> Group:
    """The state of a run for a terminal: how far and how fast it is, and every vital sign with its normal range."""
    curves = read_scalars(work_dir)
    vitals, said = state_of(measured(curves, work_dir))
    rows = [(of['label'], (of['value'], of['range'], f'{of["shape"]} {of["word"]}')) for of in vitals]
    table: Table = rich_table(('now', 'normal', 'state'), rows)
    for row, of in zip(table.rows, vitals):
        row.style = STYLES.get(of['state'])
    signs = [Text(of['sentence'], STYLES['bad']) for of in vitals if of['state'] == 'bad' and of['sentence']]
    return Group(Text(f'{Path(work_dir).resolve().name}: {pace(work_dir, curves)}'), Text(said), *signs, table)


def pace(work_dir: str | Path, curves: Mapping[str, Curve]) -> str:
    """Where the run is, how fast, and how long the rest takes at that rate."""
    cfg = config_of(work_dir)
    steps, seconds = curves.get('time', ([], []))
    if not steps:
        return 'no step has been timed yet'
    total, length = cfg.get('train_cfg', {}), max(step / epoch for step, epoch in zip(*curves.get('epoch', ([1], [1]))))
    last = total.get('max_iters') or round(length * total.get('max_epochs', 0))
    images = cfg.get('total_batch_size')
    parts = [f'iteration {steps[-1]:,}' + (f' of {last:,}' if last else ''), f'{1 / seconds[-1]:.3g} iterations/s']
    parts += [f'{images / seconds[-1]:,.0f} images/s'] if images else []
    parts += [f'{timedelta(seconds=round((last - steps[-1]) * seconds[-1]))} left'] if last else []
    return ', '.join(parts)
