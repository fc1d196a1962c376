"""The papers' numbers, as data in configs/studies/_published; never mixed with measured ones without saying which is which."""

from functools import cache
from typing import Any

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.io import read_yaml

BESIDE = ('columns', 'printed', 'notes')  # of a table: what is no row
SETTINGS = {'beta'}  # what tells a published row from others; no score


@cache
def tables() -> dict[str, dict]:
    """Every published table, by paper."""
    folder = home() / 'configs' / 'studies' / '_published'
    return {path.stem: read_yaml(path, dict) for path in sorted(folder.glob('*.yaml'))}


def rows(name: str) -> dict[str, dict[str, float]]:
    """A table's rows as dictionaries, whether they are printed so, as lists under columns, or as one number.

    >>> rows('byol.table1_linear_in1k')['resnet50']
    {'top1': 74.3, 'top5': 91.6}
    """
    table, columns = tables(), ()
    for part in name.split('.') if name else ():
        if not isinstance(table, dict) or part not in table:
            raise UserError(f"there is no published table '{name}'; see configs/studies/_published")
        table = table[part]
        columns = table.get('columns', columns) if isinstance(table, dict) else columns
    found = enumerate(table) if isinstance(table, list) else table.items() if name else ()
    return {str(key): _numbers(row, columns) for key, row in found if key not in BESIDE}


def _numbers(row: Any, columns: list[str]) -> dict[str, float]:
    if not isinstance(row, dict):
        row = dict(zip(columns, row)) if isinstance(row, list) else {'top1': row}
    known = {key: value for key, value in row.items() if value is not None and not isinstance(value, bool)}
    return {key: value for key, value in known.items() if key not in SETTINGS}


def row(name: str) -> dict[str, float]:
    """Return a paper's numbers of one network, by column: a row of AIRL's Tab. 1 or 2, or TABLE/ROW of any table.

    >>> row('mocov2plus_sgd')['voc07_ap50'], row('byol.table4b_depth/byol')['nyuv2_rms']
    (77.1, 0.541)
    """
    table, _, key = name.rpartition('/')
    near = [table] if table else [f'revisit_airl.{name}' for name in ('table1_ladder', 'table2_optimizer_crossover')]
    known = {key: row for name in near for key, row in rows(name).items()}
    if key not in known:
        raise UserError(f"the paper has no row '{key}'; there are {', '.join(known)}")
    return known[key]
