"""Tables for the terminal, pages, papers and spreadsheets."""

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path

from markupsafe import Markup

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
            more. `csv` writes all digits instead.
        scores: The names of columns with scores. The best value of each score is highlighted.
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
            values = {}
            for row, cells in enumerate(self.rows):
                if isinstance(cells[column], float) and isfinite(cells[column]):
                    values[row] = round(cells[column], self._digits(column))
            choose = max if higher_is_better(name) else min
            top = choose(values.values(), default=None)
            found |= {(row, column) for row, value in values.items() if value == top}
        return found

    def html(self) -> Markup:
        return macro('table.html', 'table', self)

    def text(self, title: str = '') -> str:
        """Return aligned text for a terminal."""
        lines = self._texts()
        aligned = []
        for column, texts in enumerate(zip(*lines)):
            side = '<' if self.is_words(column) else '>'
            width = max(map(len, texts))
            aligned.append([f'{text:{side}{width}}' for text in texts])
        text = '\n'.join('  '.join(line).rstrip() for line in zip(*aligned))
        return f'{title}\n{text}' if title else text

    def _texts(self) -> list[list[str]]:
        return [[*map(self.shown, line, range(len(line)))] for line in (self.columns, *self.rows)]

    def is_words(self, column: int) -> bool:
        """Return whether a column contains words, which are aligned to the left."""
        texts = (self.shown(row[column], column) for row in self.rows)
        return not column or any(text[:1].isalpha() for text in texts)

    def markdown(self) -> str:
        head, *body = (
            f'| {" | ".join(cell.translate(MARKDOWN) for cell in line)} |\n'
            for line in self._texts()
        )
        return f'{head}| ---{" | --:" * (len(self.columns) - 1)} |\n{"".join(body)}'

    def latex(self) -> str:
        """Return LaTeX for a paper that loads the package booktabs."""
        head, *body = (
            f'{" & ".join(cell.translate(LATEX) for cell in line)} \\\\\n' for line in self._texts()
        )
        return (
            f'\\begin{{tabular}}{{l{"r" * (len(self.columns) - 1)}}}\n\\toprule\n{head}\\midrule\n'
            f'{"".join(body)}\\bottomrule\n\\end{{tabular}}\n'
        )

    def csv(self) -> str:
        text = io.StringIO(newline='')
        csv.writer(text).writerows([self.columns, *self.rows])
        return text.getvalue()

    def save(self, stem: str | Path) -> Path:
        """Write the table to `stem`.csv."""
        return write_text(f'{stem}.csv', self.csv())


def signed(value: float, digits: int = 1) -> str:
    """Return a number as text, with its sign unless the rounded number is zero."""
    text = f'{value:+.{digits}f}'.replace('-', '−')
    return text if float(text[1:]) else text[1:]


def counted(number: int, noun: str) -> str:
    return f'{number:,} {noun}' if number == 1 else f'{number:,} {noun}s'
