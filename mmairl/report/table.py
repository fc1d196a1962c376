"""Write tables to the terminal, to pages and to files.

A row of a table has a name and cells. Names and cells are plain text, which is never interpreted as markup. Only `html_table`
also accepts Markup.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mmairl.errors import printable
from mmairl.evaluation.protocol import Result
from mmairl.io import write_text
from mmairl.report.page import LATEX, MARKDOWN, macro

Row = tuple[str, Sequence[str]]  # the name of a row and its cells
Cell = tuple[int, int]  # the indices of the row and the column
ABSENT = '–'
UNLIMITED = 10_000  # a terminal width in characters that no table exceeds
FORMULA_SIGNS = ('=', '+', '-', '@')
NUMBER = re.compile(r'[+−]?\d+(\.\d+)?')


def print_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    title: str = '',
    best: Iterable[Cell] = (),
    head: str = '',
) -> None:
    """Print a table. If the terminal is too narrow for the table, print each row as a list of its cells.

    If the output is a pipe or a file, the width is not limited.

    Args:
        columns: The names of the columns except the first, which contains the names of the rows.
        rows: The names and cells of the rows.
        title: The title above the table.
        best: The cells to print in bold.
        head: The name of the first column.
    """
    title = printable(title)
    columns = [printable(name) for name in columns]
    rows = [(printable(name), [*map(printable, cells)]) for name, cells in rows]
    table = _rich_table(columns, rows, title, set(best), head)
    console = Console()
    unlimited = console.options.update_width(UNLIMITED)
    if not console.is_terminal:
        console.width = UNLIMITED
    if console.measure(table, options=unlimited).maximum <= console.width:
        console.print(table)
        return
    console.print(Text(title, 'italic'))
    for name, cells in rows:
        console.print(Text(name, 'bold'))
        for column, cell in zip(columns, cells):
            if cell:
                console.print(Text(f'  {column}: {cell}'))


def _rich_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    title: str,
    best: set[Cell],
    head: str,
) -> Table:
    table = Table(title=Text(title) if title else None, title_justify='left')
    table.add_column(Text(head), no_wrap=True)
    for place, name in enumerate(columns):
        has_words = any(cells[place][:1].isalpha() for _, cells in rows)
        table.add_column(Text(name), justify='left' if has_words else 'right', no_wrap=True)
    for row, (name, cells) in enumerate(rows):
        styles = ['bold' if (row, column) in best else '' for column in range(len(cells))]
        table.add_row(Text(name), *map(Text, cells, styles))
    return table


def html_table(
    columns: Sequence[str],
    rows: Sequence[Row],
    best: Iterable[Cell] = (),
    bars: int = 0,
    words: bool = False,
    heat: bool = False,
    head: str = 'name',
) -> Markup:
    """Return an HTML table for a page.

    Args:
        columns: The names of the columns except the first, which contains the names of the rows.
        rows: The names and cells of the rows.
        best: The cells to highlight.
        bars: How many columns, from the left, contain percentages. Each of these percentages is also shown as a bar.
        words: Whether cells contain text that wraps into several lines.
        heat: Whether to shade each cell by its value, which must be between 0 and 1.
        head: The name of the first column.
    """
    return macro('table.html', 'table', columns, rows, best, bars, words, heat, head)


def print_results(results: Sequence[Result], title: str) -> None:
    _, columns, rows, best = _scores(results)
    print_table(columns, rows, title, best)


def results_table(results: Sequence[Result]) -> Markup:
    names, columns, rows, best = _scores(results)
    return html_table(columns, rows, best, bars=len(names))


def _scores(results: Sequence[Result]) -> tuple[list[str], list[str], list[Row], list[Cell]]:
    """Return the names of the scores, the columns, the rows, and the best cell of each score if there are several rows."""
    names = list(dict.fromkeys(name for result in results for name in result.scores))
    has_left_out = any(result.left_out for result in results)
    rows = []
    for result in results:
        known = result.scores
        cells = [f'{known[name]:.1f}' if name in known else ABSENT for name in names]
        cells.append(f'{result.seconds:.1f}')
        if has_left_out:
            cells.append(', '.join(f'{count} {name}' for name, count in result.left_out.items()))
        rows.append((result.subject, cells))
    best = []
    for column, name in enumerate(names if len(results) > 1 else ()):
        scores = [result.scores.get(name, -inf) for result in results]
        top = max(scores)
        best += [(row, column) for row, score in enumerate(scores) if score == top]
    columns = [*names, 'seconds', *(['left out'] if has_left_out else [])]
    return names, columns, rows, best


def signed(value: float, digits: int = 1) -> str:
    """Return a number as text, with its sign unless the rounded number is zero."""
    text = f'{value:+.{digits}f}'.replace('-', '−')
    return text if float(text[1:]) else text[1:]


def counted(number: int, noun: str, plural: str = '') -> str:
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {plural or noun + "s"}'


def escaped(text: str, signs: Mapping[str, str]) -> str:
    """Return a text on one line, with each character that is a key of `signs` replaced by its value."""
    return printable(' '.join(text.split())).translate(str.maketrans(dict(signs)))


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV. Floats are written with seven significant digits, and missing numbers as empty cells."""
    text = io.StringIO(newline='')
    writer = csv.writer(text)
    for row in (columns, *rows):
        writer.writerow([_csv_cell(value) for value in row])
    return text.getvalue()


def as_markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = []
    for row in (columns, *rows):
        cells = ' | '.join(escaped(cell, MARKDOWN) for cell in row)
        lines.append(f'| {cells} |\n')
    lines.insert(1, f'| ---{" | --:" * (len(columns) - 1)} |\n')
    return ''.join(lines)


def as_latex(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as LaTeX for a paper that loads the package booktabs."""
    lines = []
    for row in (columns, *rows):
        cells = ' & '.join(escaped(cell, LATEX) for cell in row)
        lines.append(f'{cells} \\\\\n')
    head, *body = lines
    layout = 'l' + 'r' * (len(columns) - 1)
    return (
        f'\\begin{{tabular}}{{{layout}}}\n\\toprule\n{head}\\midrule\n'
        f'{"".join(body)}\\bottomrule\n\\end{{tabular}}\n'
    )


TABLE_FORMATS = {'tex': as_latex, 'md': as_markdown, 'csv': as_csv}


def save_table(header: Sequence[str], rows: Iterable[Sequence[object]], stem: str | Path) -> Path:
    """Write a table to `stem`.csv. Floats are written with seven significant digits, and missing numbers as empty cells."""
    return write_text(f'{stem}.csv', as_csv(header, rows))


def _csv_cell(value: object) -> object:
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return value.replace('−', '-').removeprefix('+')
    if isinstance(value, str):
        # A quote at the start keeps spreadsheet programs from reading the text as a formula.
        return f"'{printable(value)}" if value.startswith(FORMULA_SIGNS) else printable(value)
    return f'{value:.7g}' if isinstance(value, float) else value
