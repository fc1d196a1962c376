"""Read the published numbers of the papers. They are in `tables`, one file for each paper.

Pages show these numbers and mark them as published. Statistics never use them.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mmairl.errors import UserError
from mmairl.io import read_yaml

NOT_ROWS = ('columns', 'printed', 'notes')  # the keys of a table that are not names of rows
NOT_SCORES = ('beta',)  # the columns of a table that contain a setting of the row and no score
DEFAULT_TABLES = ('revisit_airl.table1_ladder', 'revisit_airl.table2_optimizer_crossover')


@cache
def tables() -> dict[str, dict]:
    """Return the published tables of each paper, by the name of the paper's file."""
    folder = Path(__file__).with_name('tables')
    return {path.stem: read_yaml(path, dict) for path in sorted(folder.glob('*.yaml'))}


def rows(name: str) -> dict[str, dict[str, float]]:
    """Return the rows of a published table such as `byol.table1_linear_in1k`. If the name is empty, there are no rows.

    In the file, a row can be a mapping of scores, a list of numbers in the order of the table's `columns`, or a single
    number, which is a top-1 accuracy.

    Example:
        >>> rows('byol.table1_linear_in1k')['resnet50']
        {'top1': 74.3, 'top5': 91.6}
    """
    if not name:
        return {}
    table: Any = tables()
    columns: Sequence[str] = ()
    for part in name.split('.'):
        if not isinstance(table, dict) or part not in table:
            raise UserError(
                f"published table: the table does not exist ('{name}'); name a table in projects/papers/tables",
                code='no-published-table',
            )
        table = table[part]
        if isinstance(table, dict):
            columns = table.get('columns', columns)
    entries = enumerate(table) if isinstance(table, list) else table.items()
    return {str(key): _numbers(row, columns) for key, row in entries if key not in NOT_ROWS}


def _numbers(row: Any, columns: Sequence[str]) -> dict[str, float]:
    if isinstance(row, list):
        row = dict(zip(columns, row))
    elif not isinstance(row, dict):
        row = {'top1': row}
    numbers = {}
    for key, value in row.items():
        if value is not None and not isinstance(value, bool) and key not in NOT_SCORES:
            numbers[key] = value
    return numbers


def row(name: str) -> dict[str, float]:
    """Return the published numbers of a row by column.

    The name of the row is TABLE/ROW. If it is only ROW, the row is looked up in DEFAULT_TABLES.

    Example:
        >>> row('mocov2plus_sgd')['voc07_ap50'], row('byol.table4b_depth/byol')['nyuv2_rms']
        (77.1, 0.541)
    """
    table, _, key = name.rpartition('/')
    known: dict[str, dict[str, float]] = {}
    for place in (table,) if table else DEFAULT_TABLES:
        known |= rows(place)
    if key not in known:
        raise UserError(
            f"published row: the table has no such row ('{key}'); name one of {', '.join(known)}",
            code='no-published-row',
        )
    return known[key]
