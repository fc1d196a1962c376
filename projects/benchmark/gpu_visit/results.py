"""The results of a visit: one JSON object per line; a table for the terminal and a page."""

import json
from collections.abc import Sequence
from pathlib import Path

NOT_SHOWN = {'seconds', 'job', 'kernels'}


def read_rows(path: Path) -> list[dict]:
    """Return the complete lines of a results file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith('}')]


def values(row: dict) -> str:
    return ' '.join(
        f'{key}={value}' for key, value in row.items() if key not in NOT_SHOWN and value is not None
    )


def format_row(row: dict) -> str:
    return f'{row["seconds"]:6.1f} {row["job"]:20} {values(row)}'[:230]


def failures(rows: Sequence[dict]) -> list[dict]:
    """Return errors, and the ends of jobs that did not succeed."""
    return [row for row in rows if 'error' in row or row.get('status', 0) != 0]


def measured(rows: Sequence[dict]) -> list[dict]:
    """Return the rows with numbers."""
    return [row for row in rows if not {'event', 'error', 'status', 'note'} & row.keys()]


def print_table(rows: Sequence[dict]) -> None:
    print('\nFailures' if failures(rows) else '\nNo failures')
    for row in failures(rows):
        print(format_row(row))
    print('\nNumbers')
    for row in measured(rows):
        print(format_row(row))


def write_page(out: Path) -> Path:
    """Write the page of a folder of results."""
    from mmairl.report.page import Page
    from mmairl.report.table import html_table

    rows = read_rows(out / 'results.jsonl')
    devices = {str(row['device']) for row in rows if 'device' in row}
    failed = sorted({row['job'] for row in failures(rows)})
    lead = f'Failed jobs: {", ".join(failed)}' if failed else 'No job failed.'
    page = Page('GPU visit', lead=f'{lead} Device: {", ".join(sorted(devices)) or "unknown"}.')
    ends = [
        (row['job'], [str(row['status'] or 'succeeded'), f'{row["took"]} s'])
        for row in rows
        if 'status' in row
    ]
    page.add('Jobs', 'The log of each is in log.txt.', html_table(['end', 'time'], ends))
    errors = [
        (row['job'], [row['error'], ' '.join(row.get('at', []))]) for row in rows if 'error' in row
    ]
    if errors:
        page.add('Errors', '', html_table(['error', 'where'], errors, words=True))
    steps = [row for row in rows if 'step_ms' in row]
    if steps:
        page.add('Throughput', 'Whole steps on images in memory.', steps_table(steps))
    profiles = [row for row in rows if row.get('kernels')]
    for row in profiles:
        shares = [(name, [f'{share:.0%}']) for name, share in row['kernels'].items()]
        page.add(f'Kernels of {row["job"]}', '', html_table(['of the busy time'], shares))
    others = [
        (row['job'], [values(row)])
        for row in measured(rows)
        if 'step_ms' not in row and not row.get('kernels')
    ]
    page.add('Other numbers', '', html_table(['values'], others, words=True))
    return page.write(out / 'index.html')


def steps_table(steps: Sequence[dict]) -> str:
    from mmairl.report.table import html_table

    columns = ['images_per_second', 'step_ms', 'spread_ms', 'host_ms', 'gigabytes']
    cells = [
        (row['job'], ['' if row.get(key) is None else str(row[key]) for key in columns])
        for row in steps
    ]
    return html_table(['images/s', 'step, ms', 'spread, ms', 'host, ms', 'peak, GB'], cells)
