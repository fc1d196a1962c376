"""Compare the rows of a study by the scores that its record (study.json) stores.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from mmairl.study.statistics.contrasts import LEVEL, Effect, contrast, decide

# A record is the content of study.json, or of one of its rows or runs.
Record = Mapping[str, Any]


def scores_by_row(study: Record, key: str) -> dict[str, dict[int, float]]:
    """Return a score of all finished runs by row and seed, without values that are NaN or infinite.

    Args:
        study: The record of a study.
        key: The key of the score.
    """
    table = {}
    for row in study['rows']:
        scores = {run['seed']: run.get('scores', {}).get(key) for run in _finished(row)}
        table[row['name']] = {
            seed: score
            for seed, score in scores.items()
            if score is not None and math.isfinite(score)
        }
    return table


def collapsed_seeds(study: Record) -> dict[str, set[int]]:
    """Return the seeds of the collapsed runs of each row. A collapsed run has constant or nearly constant features."""
    collapsed = {}
    for row in study['rows']:
        collapsed[row['name']] = {run['seed'] for run in _finished(row) if run.get('collapsed')}
    return collapsed


def _finished(row: Record) -> list[Record]:
    return [run for run in row['runs'] if run['state'] == 'done']


def are_paired(study: Record, rows: Sequence[str], key: str) -> bool:
    """Return True if rows are paired: the runs of each shared seed started equally in all rows.

    At least two seeds must be shared. `contrast` has a parameter for the result.

    Args:
        study: The record of a study.
        rows: The names of the rows.
        key: The key of a score. Only runs that have this score count.
    """
    scores = scores_by_row(study, key)
    shared = set.intersection(*(set(scores[row]) for row in rows))
    starts = {}
    for row in study['rows']:
        starts[row['name']] = {run['seed']: run.get('start') for run in row['runs']}
    first, *others = rows
    pairs = product(others, shared)
    return len(shared) > 1 and all(
        same_start(starts[first][seed], starts[other][seed]) for other, seed in pairs
    )


def same_start(one: Record | None, other: Record | None) -> bool:
    """Return True if two runs recorded the same order of images and the same initial weights.

    Initial weights are not compared if their shapes differ.
    """
    if not one or not other or one['order'] is None or one['order'] != other['order']:
        return False
    return one['weights'] == other['weights'] or one['shapes'] != other['shapes']


def row_effects(
    study: Record, key: str, margin: float | None, level: float = LEVEL
) -> list[Effect]:
    """Return the difference of each row from its base row with its verdict; all differences by one score are one family.

    Args:
        study: The record of a study.
        key: The key of the score.
        margin: Smaller differences are equivalent.
        level: The error rate of the family. Each interval covers 1 - level.
    """
    scores, collapsed = scores_by_row(study, key), collapsed_seeds(study)
    effects = []
    for row in study['rows']:
        name, base = row['name'], row.get('on')
        if base in scores:
            paired = are_paired(study, [name, base], key)
            weights = {name: 1.0, base: -1.0}
            effects.append(
                contrast(weights, scores, paired, collapsed, level, name=name, base=base)
            )
    return decide(effects, margin, level)
