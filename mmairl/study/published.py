"""The papers' numbers, as data; never mixed with measured ones without saying which is which."""

from functools import cache
from pathlib import Path

import yaml

from mmairl.errors import UserError


@cache
def tables() -> dict:
    """Every published table."""
    return yaml.safe_load(Path(__file__).with_name('published.yaml').read_text())


def row(method: str) -> dict[str, float]:
    """What the paper prints of one pre-training in the transfer tables (Tab. 1 and 2), by column.

    >>> row('mocov2plus_sgd')['voc07_ap50']
    77.1
    """
    known = {**tables()['revisit_airl']['table1_ladder'], **tables()['revisit_airl']['table2_optimizer_crossover']}
    if method not in known:
        raise UserError(f"the paper has no row '{method}'; there are {', '.join(known)}")
    return known[method]
