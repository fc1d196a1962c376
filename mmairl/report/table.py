"""The results table, once for the terminal and once for the page."""

from collections.abc import Mapping, Sequence
from html import escape

from rich.table import Table

from mmairl.evaluation.protocol import Result


def columns(results: Sequence[Result]) -> list[str]:
    """Every score's name in order of first appearance, so that subjects with different scores share one table."""
    return list(dict.fromkeys(name for result in results for name in result.scores))


def terminal_table(results: Sequence[Result], title: str) -> Table:
    """Top-1 in percent, one subject per row, the best of each column in bold."""
    table = Table(title=title, title_justify='left')
    table.add_column('')
    for name in columns(results):
        table.add_column(name, justify='right')
    table.add_column('seconds', justify='right', style='dim')
    best = best_scores(results)
    for result in results:
        cells = []
        for name in columns(results):
            text = _cell(result, name)
            cells.append(f'[bold]{text}[/]' if len(results) > 1 and result.scores.get(name) == best[name] else text)
        table.add_row(result.subject, *cells, f'{result.seconds:.1f}')
    return table


def html_table(results: Sequence[Result]) -> str:
    """The same table for a page."""
    best = best_scores(results)
    head = ''.join(f'<th>{escape(name)}</th>' for name in columns(results))
    rows = []
    for result in results:
        cells = ''.join(
            f'<td{" class=best" if result.scores.get(name) == best[name] else ""}>{_cell(result, name)}</td>'
            for name in columns(results)
        )
        rows.append(
            f'<tr><th scope=row>{escape(result.subject)}</th>{cells}<td class=quiet>{result.seconds:.1f} s</td></tr>'
        )
    return (
        f'<div class=scroll><table><thead><tr><td></td>{head}<th class=quiet>time</th></tr></thead>'
        f'<tbody>{"".join(rows)}</tbody></table></div>'
    )


def figures_table(columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """A table of anything for a page, one named row each."""
    head = ''.join(f'<th>{escape(name)}</th>' for name in columns)
    body = ''.join(
        f'<tr><th scope=row>{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>'
        for name, row in rows.items()
    )
    return f'<div class=scroll><table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def best_scores(results: Sequence[Result]) -> dict[str, float]:
    return {name: max(r.scores[name] for r in results if name in r.scores) for name in columns(results)}


def _cell(result: Result, name: str) -> str:
    return f'{result.scores[name]:.1f}' if name in result.scores else '–'
