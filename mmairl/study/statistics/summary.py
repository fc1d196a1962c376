"""Numbers on study pages that are computed from the record of a study (study.json).

A row of a study is one configuration, usually trained with several seeds.
"""

from collections.abc import Mapping
from typing import Any

from mmairl.study.statistics.equal_cost import EQUAL


def progress(study: Mapping) -> tuple[int, int]:
    """Return the number of finished runs, and the number of runs that the study requires."""
    finished = 0
    asked = 0
    for row in study['rows']:
        asked += len(row['runs']) + len(missing_seeds(study, row))
        finished += sum(run['state'] == 'done' for run in row['runs'])
    return finished, asked


def missing_seeds(study: Mapping, row: Mapping) -> list[int]:
    """Return the seeds for which a row has no run yet.

    The list is empty for untrained rows and for external rows, which were trained outside the study. It is also empty in a
    sequential analysis, in which decided rows do not need further seeds.
    """
    if study.get('sequential') or row.get('untrained') or row.get('given'):
        return []
    present = {run['seed'] for run in row['runs']}
    return [seed for seed in study['seeds'] if seed not in present]


def cost_summary(study: Mapping) -> dict[str, Any]:
    """Return the values of the page section on cost.

    They include the cost of each row, the comparisons at equal cost for each score (`equal`), and the pairs of rows that cannot
    be compared at equal cost (`without`). The dictionary is empty if no row has a known cost.
    """
    cost = study.get('cost', {})
    rows = cost.get('rows', {})
    if not any(row['images'] for row in rows.values()):
        return {}
    flops = [row['flops'] for row in rows.values()]
    equal = {}
    without = {}
    for key, family in cost.get('equal', {}).items():
        without |= {(pair['row'], pair['on']): pair for pair in family if 'estimate' not in pair}
        if estimated := [pair for pair in family if 'estimate' in pair]:
            equal[key] = estimated
    return dict(
        rows=rows,
        first=next(filter(None, flops), None),
        same=all(flops) and max(flops) <= (1 + EQUAL) * min(flops),
        equal=equal,
        without=list(without.values()),
    )
