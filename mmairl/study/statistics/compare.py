"""Compare the rows of a study, or estimate the effects of its factors, from the scores in its record (study.json).

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from mmairl.study.statistics.contrasts import (
    COLLAPSED,
    LEVEL,
    Effect,
    Scores,
    contrast,
    decide,
    with_error,
)
from mmairl.study.statistics.designs import Design

# A record is the content of study.json, or of one of its rows or runs.
Record = Mapping[str, Any]


def scores_by_row(study: Record, key: str) -> dict[str, dict[int, float]]:
    """Return a score of all finished runs by row and seed, without values that are NaN or infinite.

    Args:
        study: The record of a study.
        key: The key of the score.
    """
    table: dict[str, dict[int, float]] = {}
    for row in study['rows']:
        found = table[row['name']] = {}
        for run in row['runs']:
            score = run.get('scores', {}).get(key)
            if run['state'] == 'done' and score is not None and math.isfinite(score):
                found[run['seed']] = score
    return table


def level_of(study: Record) -> float:
    """Return the error rate at which the effects of a study are tested. Planned analyses share LEVEL equally."""
    return LEVEL / study['interim_analyses']


def collapsed_seeds(study: Record) -> dict[str, set[int]]:
    """Return the seeds of the collapsed runs of each row. A collapsed run has constant or nearly constant features."""
    return {
        row['name']: {run['seed'] for run in row['runs'] if run.get('collapsed')}
        for row in study['rows']
    }


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
    return len(shared) > 1 and all(
        same_start(starts[first][seed], starts[other][seed])
        for other, seed in product(others, shared)
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
        name, base = row['name'], row['on']
        if base:
            paired = are_paired(study, [name, base], key)
            effect = contrast({name: 1.0, base: -1.0}, scores, paired, collapsed, level)
            effects.append(replace(effect, name=name, base=base))
    return decide(effects, margin, level)


def factor_effects(
    study: Record, key: str, margin: float | None, level: float = LEVEL
) -> list[Effect]:
    """Return the main effects of a design's factors, which are one family.

    A main effect is the mean change of the score from the first level of a factor to its second level, over all rows. All seeds
    that every row has are used, so the data are balanced. If a run collapsed, no effect is tested.

    Args:
        study: The record of a study with a design.
        key: The key of the score.
        margin: Smaller effects are equivalent to no effect.
        level: The error rate of the family. Each interval covers 1 - level.
    """
    design = Design(**study['design'])
    scores = scores_by_row(study, key)
    seeds = sorted(set.intersection(*(set(scores[row]) for row in design.rows)))
    balanced = {row: {seed: scores[row][seed] for seed in seeds} for row in design.rows}
    paired = are_paired(study, list(design.rows), key)
    missing = [row for row in design.rows if not scores[row]]
    collapsed = sum(map(len, collapsed_seeds(study).values()))
    effects = []
    for factor in design.factors:
        signs = design.signs((factor,))
        weights = {row: 2 * sign / len(balanced) for row, sign in signs.items()}
        effect = contrast(weights, balanced, paired=True)
        if collapsed:
            effect = Effect(collapsed=(collapsed, 0), verdict=COLLAPSED)
        elif missing:
            effect = Effect(verdict=f'not estimable without {", ".join(missing)}')
        elif len(seeds) > 1:
            error, freedom = pooled_error(balanced, paired)
            effect = replace(effect, freedom=freedom, paired=paired, verdict='')
            effect = with_error(effect, error, level)
        effects.append(replace(effect, name=factor))
    return decide(effects, margin, level)


def pooled_error(scores: Scores, paired: bool) -> tuple[float, float]:
    """Return the standard error of each effect of a design, and its degrees of freedom.

    Each row has its own variance. It comes from the residuals of its runs: their scores minus the mean of the row and, if
    rows are paired, minus the effect of the seed. The degrees of freedom are Satterthwaite's, but at most
    (n - 1) log2(R) / 2 for R rows of n runs. Without this limit, tests find false effects too often if the rows have very
    different variances.
    """
    table = np.array([list(by_seed.values()) for by_seed in scores.values()])
    rows, runs = table.shape
    residual = table - table.mean(1, keepdims=True)
    if paired:
        residual -= residual.mean(0)
    freedom = (runs - 1) * ((rows - 1) / rows if paired else 1)
    parts = (residual**2).sum(1) / freedom * 4 / (rows**2 * runs)
    square = parts.sum()
    satterthwaite = square**2 / (parts**2 / freedom).sum() if square else 0.0
    return math.sqrt(square), float(min((runs - 1) * math.log2(rows) / 2, satterthwaite))
