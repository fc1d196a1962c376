"""Tables of named rows, for the terminal, for a page, and as CSV; names are text, neither rich's markup nor HTML."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmairl.errors import printable
from mmairl.evaluation.protocol import Result
from mmairl.io import write_text
from mmairl.report.page import fill

Rows = Sequence[tuple[str, Sequence[str]]]


def print_table(
    columns: Sequence[str], rows: Rows, title: str = '', best: Iterable[tuple[int, int]] = (), head: str = ''
) -> None:
    """Print a table as wide as it is where its lines are kept (in a pipe or a file), or where it has room.

    In a narrower terminal each row is a list of its cells. The cells `best`, by row and column, are bold,
    """
    title, columns = printable(title), [printable(name) for name in columns]
    rows = [(printable(name), [printable(cell) for cell in cells]) for name, cells in rows]
    table = Table(title=Text(title) if title else None, title_justify='left')
    table.add_column(Text(head), no_wrap=True)
    for place, name in enumerate(columns):
        words = any(cells[place][:1].isalpha() for _, cells in rows)
        table.add_column(Text(name), justify='left' if words else 'right', no_wrap=True)
    for i, (name, cells) in enumerate(rows):
        table.add_row(Text(name), *(Text(cell, 'bold' if (i, j) in best else '') for j, cell in enumerate(cells)))
    console = Console()
    width = console.measure(table, options=console.options.update_width(10_000)).maximum
    if not console.is_terminal:
        console.width = max(console.width, width)
    if width <= console.width:
        console.print(table)
        return
    console.print(Text(title, 'italic'))
    for name, cells in rows:
        console.print(Text(name, 'bold'))
        console.print(*(Text(f'  {column}: {cell}') for column, cell in zip(columns, cells) if cell), sep='\n')


def html_table(
    columns: Sequence[str],
    rows: Rows,
    best: Iterable[tuple[int, int]] = (),
    bars: int = 0,
    words: bool = False,
    heat: bool = False,
) -> Markup:
    """A table for a page; the first `bars` columns are percentages that a bar shows as well, `words` wrap, and cells of
    0 to 1 are shaded by `heat`."""
    return fill('table.html', columns=columns, rows=rows, best=best, bars=bars, words=words, heat=heat)


def print_results(results: Sequence[Result], title: str) -> None:
    print_table(**_scores(results), title=title)


def results_table(results: Sequence[Result]) -> Markup:
    return html_table(**_scores(results), bars=len({name for result in results for name in result.scores}))


def _scores(results: Sequence[Result]) -> dict[str, list]:
    """Columns and rows of a table of scores in percent, a subject a row; the best of each column where there are several."""
    names, rows, best = list(dict.fromkeys(name for result in results for name in result.scores)), [], []
    top = {name: max(result.scores[name] for result in results if name in result.scores) for name in names}
    for row, result in enumerate(results):
        cells = [f'{result.scores[name]:.1f}' if name in result.scores else '–' for name in names]
        rows.append((result.subject, [*cells, f'{result.seconds:.1f}']))
        best += [(row, column) for column, name in enumerate(names) if result.scores.get(name) == top[name]]
    columns = [*names, 'seconds']
    if any(result.left_out for result in results):
        columns.append('left out')
        for result, (_, cells) in zip(results, rows):
            cells.append(', '.join(f'{count} {name}' for name, count in result.left_out.items()))
    return dict(columns=columns, rows=rows, best=best if len(results) > 1 else [])


def save_table(header: Sequence[str], rows: Iterable[Sequence[object]], stem: str | Path) -> Path:
    """Write stem.csv; floats keep seven digits and an absent number is blank."""
    text = io.StringIO(newline='')
    csv.writer(text).writerows([[_csv_cell(value) for value in row] for row in (header, *rows)])
    return write_text(f'{stem}.csv', text.getvalue())


def _csv_cell(value: object) -> object:
    if isinstance(value, str) and value.startswith(('=', '+', '-', '@')):
        return f"'{value}"  # or a spreadsheet takes a name for a formula
    return f'{value:.7g}' if isinstance(value, float) else value
