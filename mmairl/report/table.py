"""Tables of named rows, for the terminal and for a page; names are text, neither rich's markup nor HTML."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from mmairl.evaluation.protocol import Result
from mmairl.report.page import fill

Rows = Iterable[tuple[str, Sequence[str]]]


def rich_table(columns: Sequence[str], rows: Rows, title: str = '', best: Iterable[tuple[int, int]] = ()) -> Table:
    """For the terminal; the cells `best`, by row and column, are bold."""
    table = Table(title=Text(title) if title else None, title_justify='left')
    table.add_column('')
    for name in columns:
        table.add_column(Text(name), justify='right')
    for i, (name, cells) in enumerate(rows):
        table.add_row(Text(name), *(Text(cell, 'bold' if (i, j) in best else '') for j, cell in enumerate(cells)))
    return table


def html_table(columns: Sequence[str], rows: Rows, best: Iterable[tuple[int, int]] = ()) -> Markup:
    """The same for a page."""
    return fill('table.html', columns=columns, rows=list(rows), best=best)


def terminal_table(results: Sequence[Result], title: str) -> Table:
    """Scores in percent, one subject a row, the best of each column in bold."""
    return rich_table(*_cells(results), title=title, best=_best(results))


def results_table(results: Sequence[Result]) -> Markup:
    return html_table(*_cells(results), best=_best(results))


def score_names(results: Sequence[Result]) -> list[str]:
    """Every score's name in order of first appearance, so that subjects with different scores share one table."""
    return list(dict.fromkeys(name for result in results for name in result.scores))


def _cells(results: Sequence[Result]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    names = score_names(results)
    rows = [
        (r.subject, [*(f'{r.scores[n]:.1f}' if n in r.scores else '–' for n in names), f'{r.seconds:.1f}'])
        for r in results
    ]
    return [*names, 'seconds'], rows


def _best(results: Sequence[Result]) -> list[tuple[int, int]]:
    """The cells with the highest score of their column, where there is more than one row."""
    found = []
    for column, name in enumerate(score_names(results)):
        scores = {row: result.scores[name] for row, result in enumerate(results) if name in result.scores}
        found += [(row, column) for row, score in scores.items() if score == max(scores.values())]
    return found if len(results) > 1 else []
