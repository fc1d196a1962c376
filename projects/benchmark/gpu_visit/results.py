"""Read the results of gpu_visit (one JSON object per line), and show them as a table in the terminal and as a page."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

NOT_SHOWN = {'seconds', 'job', 'jobs', 'kernels'}
# Memory traffic of a training step in gigabytes per image, by the names of WAYS in throughput.py. The values are counted by
# `python -m projects.benchmark.traffic`; tf32 has the traffic of float32. GIGAFLOPS, the number of floating-point operations
# per image in billions, is the same for all ways.
GIGABYTES = {'float32': 2.943, 'tf32': 2.943, 'fast': 1.496, 'fused norm': 1.166}
GIGAFLOPS = 65.2
REHEARSED = {'cpu', 'software'}  # on these devices, the jobs run at tiny sizes


def read_rows(path: Path) -> list[dict]:
    """Return the rows of a results file. Lines that were cut off by a full disk or a kill are skipped."""
    rows = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def values(row: dict) -> str:
    return ' '.join(
        f'{key}={value}' for key, value in row.items() if key not in NOT_SHOWN and value is not None
    )


def format_row(row: dict) -> str:
    return f'{row["seconds"]:6.1f} {row["job"]:20} {values(row)}'[:230]


def failures(rows: Sequence[dict]) -> list[dict]:
    """Return the rows that report an error or an exit status other than 0."""
    return [row for row in rows if 'error' in row or row.get('status', 0) != 0]


def measured(rows: Sequence[dict]) -> list[dict]:
    """Return the rows with measured numbers."""
    return [row for row in rows if not {'event', 'error', 'status', 'note'} & row.keys()]


def outcomes(rows: Sequence[dict]) -> dict[str, object]:
    """Return the last exit status of each job, 'unfinished' if it started and did not end, or 'not started'."""
    statuses: dict[str, object] = {}
    for row in rows:
        for job in row.get('jobs', []):
            statuses.setdefault(job, 'not started')
        if row.get('event') == 'start':
            statuses[row['job']] = 'unfinished'
        elif 'status' in row:
            statuses[row['job']] = row['status']
    return statuses


def summary(rows: Sequence[dict]) -> str:
    """Return a summary: how many jobs succeeded, which did not, and the device."""
    statuses = outcomes(rows)
    groups = {
        'Failed': [
            job for job, end in statuses.items() if end not in (0, 'unfinished', 'not started')
        ],
        'Unfinished': [job for job, end in statuses.items() if end == 'unfinished'],
        'Not started': [job for job, end in statuses.items() if end == 'not started'],
    }
    parts = [f'{name}: {", ".join(jobs)}.' for name, jobs in groups.items() if jobs]
    devices = devices_of(rows)
    if REHEARSED & set(devices):
        parts.append(
            'This is a rehearsal at tiny sizes, so its numbers do not show the speed of a GPU.'
        )
    head = f'{sum(end == 0 for end in statuses.values())} of {len(statuses)} jobs succeeded.'
    return ' '.join([head, *parts, f'Device: {", ".join(devices) or "unknown"}.'])


def devices_of(rows: Sequence[dict]) -> list[str]:
    return list(dict.fromkeys(str(row['device']) for row in rows if 'device' in row))


def limit(rows: Sequence[dict], way: str) -> float | None:
    """Return the highest possible number of images per second, or None if it cannot be computed.

    A step takes at least the time to copy as many bytes as it moves, and at least the time to compute its matrix products.
    """
    way = re.sub(r' \d+$', '', way)  # 'fast 512' is the way 'fast' with a batch size of 512
    products = way if way in ('float32', 'tf32') else 'bfloat16'
    copies = [
        row['copy_terabytes_per_second'] for row in rows if 'copy_terabytes_per_second' in row
    ]
    rates = [row['teraflops'] for row in rows if row.get('product') == products]
    if REHEARSED & set(devices_of(rows)) or way not in GIGABYTES or not copies or not rates:
        return None
    return 1e3 / max(GIGABYTES[way] / copies[-1], GIGAFLOPS / rates[-1])


def print_table(rows: Sequence[dict]) -> None:
    print('\nFailures' if failures(rows) else '\nNo failures')
    print(summary(rows))
    for row in failures(rows):
        print(format_row(row))
    print('\nNumbers')
    for row in measured(rows):
        print(format_row(row))


def write_page(out: Path) -> Path:
    """Write the results in `out` as the page index.html."""
    from mmairl.report.page import Page
    from mmairl.report.table import html_table

    rows = read_rows(out / 'results.jsonl')
    page = Page('GPU visit', lead=summary(rows))
    took = {row['job']: f'{row["took"]} s' for row in rows if 'status' in row}
    ends = [
        (job, [str(end or 'succeeded'), took.get(job, '')]) for job, end in outcomes(rows).items()
    ]
    page.add(
        'Jobs', 'The output of all jobs is in log.txt.', html_table(['last exit', 'time'], ends)
    )
    errors = [
        (row['job'], [row['error'], ' '.join(row.get('at', []))]) for row in rows if 'error' in row
    ]
    if errors:
        page.add('Errors', '', html_table(['error', 'where'], errors, words=True))
    steps = [row for row in rows if 'step_ms' in row]
    if steps:
        page.add('Throughput', THROUGHPUT, steps_table(rows))
    profiles = [row for row in rows if row.get('kernels')]
    for row in profiles:
        shares = [(name, [f'{share:.0%}']) for name, share in row['kernels'].items()]
        page.add(f'Kernels of {row["job"]}', '', html_table(['of the busy time'], shares))
    other_rows = [
        (row['job'], [values(row)])
        for row in measured(rows)
        if 'step_ms' not in row and not row.get('kernels')
    ]
    page.add('Other numbers', '', html_table(['values'], other_rows, words=True))
    return page.write(out / 'index.html')


THROUGHPUT = (
    'Whole training steps with images in memory. Busy is the time that the kernels of a step take. The limit is the highest '
    'possible speed: a step takes at least the time to copy as many bytes as it moves, and at least the time to compute its '
    'matrix products. The job probe measures how fast the device copies and multiplies.'
)
COLUMNS = {
    'images_per_second': 'images/s',
    'step_ms': 'step, ms',
    'spread_ms': 'spread, ms',
    'host_ms': 'host, ms',
    'busy_ms': 'busy, ms',
    'launches': 'kernels',
    'gigabytes': 'peak, GB',
}


def steps_table(rows: Sequence[dict]) -> str:
    from mmairl.report.table import html_table

    cells = []
    profiles = {row['job']: row for row in rows if 'busy_ms' in row}
    for row in rows:
        if 'step_ms' not in row:
            continue
        numbers = {**profiles.get(row['job'], {}), **row}
        fastest = limit(rows, row['job'].removeprefix('step '))
        share = f'{row["images_per_second"] / fastest:.0%}' if fastest else ''
        shown = ['' if numbers.get(key) is None else str(numbers[key]) for key in COLUMNS]
        cells.append((row['job'], [*shown, share]))
    return html_table([*COLUMNS.values(), 'of the limit'], cells)
