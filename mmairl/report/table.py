"""Tables for the terminal, pages, papers and spreadsheets."""

import csv
import io
import math
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup
from rich.cells import cell_len

from mmairl.evaluation.metrics import higher_is_better
from mmairl.io import write_text
from mmairl.report.page import LATEX, MARKDOWN, macro

ABSENT = '–'
Cell = str | float | None  # text, Markup, a number, or None for a missing value


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows.

    Text is never interpreted as markup. Only `html` shows cells of type Markup as they are.

    Args:
        columns: The names of the columns.
        rows: The cells of the rows. None and NaN are missing values.
        digits: The number of decimals of floats. Scores that are better if they are lower, which are usually below 1, have two
            more. `csv` writes seven significant digits instead.
        scores: The names of columns with scores. The best value of each score is highlighted.
        bars: The names of columns with percentages, which a page also shows as bars.
        heat: Whether a page shades each number by its value, which must be between 0 and 1.

    Example:
        >>> table = Table(['network', 'k-NN', 'RMSE'], [['a', 71.25, 0.5], ['b', None, 0.4]], scores=['RMSE'])
        >>> print(table.text())
        network  k-NN   RMSE
        a        71.2  0.500
        b           –  0.400
        >>> table.best
        {(1, 2)}
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 1
    scores: Collection[str] = ()
    bars: Collection[str] = ()
    heat: bool = False

    def shown(self, cell: Cell, column: int = 0) -> str:
        """Return a cell of a column as text for readers."""
        if cell is None or cell != cell:
            return ABSENT
        if isinstance(cell, float):
            return f'{cell:.{self._digits(column)}f}'.replace('-', '−')
        text = cell.striptags() if isinstance(cell, Markup) else str(cell)
        return ' '.join(text.split())

    def _digits(self, column: int) -> int:
        name = self.columns[column]
        is_error = name in self.scores and not higher_is_better(name)
        return self.digits + 2 * is_error

    @cached_property
    def best(self) -> set[tuple[int, int]]:
        """The row and column of the best value of each score, if the table has several rows."""
        found = set()
        for column, name in enumerate(self.columns):
            if name not in self.scores or len(self.rows) < 2:
                continue
            sign = 1 if higher_is_better(name) else -1
            values = {}
            for row, cells in enumerate(self.rows):
                if isinstance(cells[column], float) and math.isfinite(cells[column]):
                    values[row] = sign * round(cells[column], self._digits(column))
            top = max(values.values(), default=None)
            found |= {(row, column) for row, value in values.items() if value == top}
        return found

    def html(self) -> Markup:
        return macro('table.html', 'table', self)

    def text(self, title: str = '') -> str:
        """Return aligned text. If a terminal is too narrow for it, return each row as a list of its cells instead."""
        lines = self._texts()
        widths = [max(map(cell_len, column)) for column in zip(*lines)]
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
        if sum(widths) + 2 * len(widths) - 2 > room:
            text = self._listed(lines)
        else:
            text = '\n'.join(self._aligned(line, widths) for line in lines)
        return f'{title}\n{text}' if title else text

    def _texts(self) -> list[list[str]]:
        return [[*map(self.shown, line, range(len(line)))] for line in (self.columns, *self.rows)]

    def is_words(self, column: int) -> bool:
        """Return whether a column contains words, which are aligned to the left."""
        texts = (self.shown(row[column], column) for row in self.rows)
        return not column or any(text[:1].isalpha() for text in texts)

    def _aligned(self, line: Sequence[str], widths: Sequence[int]) -> str:
        parts = []
        for column, (text, width) in enumerate(zip(line, widths)):
            space = ' ' * (width - cell_len(text))
            parts.append(text + space if self.is_words(column) else space + text)
        return '  '.join(parts).rstrip()

    def _listed(self, lines: Sequence[Sequence[str]]) -> str:
        listed = []
        for name, *cells in lines[1:]:
            listed.append(name)
            for column, cell in zip(self.columns[1:], cells):
                if cell:
                    listed.append(f'  {column}: {cell}')
        return '\n'.join(listed)

    def markdown(self) -> str:
        head, *body = (
            f'| {" | ".join(escaped(cell, MARKDOWN) for cell in line)} |\n'
            for line in self._texts()
        )
        return f'{head}| ---{" | --:" * (len(self.columns) - 1)} |\n{"".join(body)}'

    def latex(self) -> str:
        """Return LaTeX for a paper that loads the package booktabs."""
        head, *body = (
            f'{" & ".join(escaped(cell, LATEX) for cell in line)} \\\\\n' for line in self._texts()
        )
        return (
            f'\\begin{{tabular}}{{l{"r" * (len(self.columns) - 1)}}}\n\\toprule\n{head}\\midrule\n'
            f'{"".join(body)}\\bottomrule\n\\end{{tabular}}\n'
        )

    def csv(self) -> str:
        """Return CSV. Missing values are empty."""
        text = io.StringIO(newline='')
        writer = csv.writer(text)
        for line in (self.columns, *self.rows):
            writer.writerow(map(self._csv_cell, line))
        return text.getvalue()

    def _csv_cell(self, cell: Cell) -> str:
        if cell is None or cell != cell:
            return ''
        if isinstance(cell, float):
            return f'{cell:.7g}'
        return self.shown(cell).replace('−', '-')

    def save(self, stem: str | Path) -> Path:
        """Write the table to `stem`.csv."""
        return write_text(f'{stem}.csv', self.csv())


def signed(value: float, digits: int = 1) -> str:
    """Return a number as text, with its sign unless the rounded number is zero."""
    text = f'{value:+.{digits}f}'.replace('-', '−')
    return text if float(text[1:]) else text[1:]


def counted(number: int, noun: str, plural: str = '') -> str:
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {plural or noun + "s"}'


def escaped(text: str, signs: Mapping[str, str]) -> str:
    """Return a text with each character that is a key of `signs` replaced by its value."""
    return text.translate(str.maketrans(dict(signs)))
