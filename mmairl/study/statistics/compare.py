"""Compare the rows of a study, or estimate the effects of its factors, from the scores in its record (study.json).

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Any

import numpy as np

from mmairl.study.statistics.contrasts import (
    COLLAPSED,
    LEVEL,
    NOT_MEASURED,
    ONE_SEED,
    Effect,
    Scores,
    contrast,
    decide,
    with_error,
)
from mmairl.study.statistics.designs import Design, Term, title

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


def difference(study: Record, key: str, name: str, base: str, level: float = LEVEL) -> Effect:
    """Return the difference between two rows, without a decision."""
    scores, collapsed = scores_by_row(study, key), collapsed_seeds(study)
    paired = are_paired(study, [name, base], key)
    weights = {name: 1.0, base: -1.0}
    return contrast(weights, scores, paired, collapsed, level, name=name, base=base)


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
    names = {row['name'] for row in study['rows']}
    pairs = [(row['name'], row['on']) for row in study['rows'] if row.get('on') in names]
    effects = [difference(study, key, name, base, level) for name, base in pairs]
    return decide(effects, margin, level)


def factor_effects(
    study: Record, key: str, margin: float | None, level: float = LEVEL
) -> tuple[list[Effect], list[Effect]]:
    """Return the main effects of a design's factors, and the pairwise interactions that its rows can separate.

    Each of the two groups is a family of its own. A main effect is the mean change of the score from the first level of a
    factor to its second level, over all rows. An interaction of two factors is half the difference between the effects of one
    factor at the two levels of the other factor. All seeds that every row has are used, so the data are balanced. If a run
    collapsed, no effect is tested.

    Args:
        study: The record of a study with a design.
        key: The key of the score.
        margin: Smaller effects are equivalent to no effect.
        level: The error rate of each family. Each interval covers 1 - level.
    """
    design = Design(study['design']['factors'], study['design']['rows'])
    scores = scores_by_row(study, key)
    fallen = sum(len(seeds) for row, seeds in collapsed_seeds(study).items() if row in design.rows)
    paired = are_paired(study, list(design.rows), key)
    families = []
    for terms in (design.main, design.interactions):
        effects = _estimates(design, terms, scores, paired, level)
        if fallen:
            reason = dict(collapsed=(fallen, 0), verdict=COLLAPSED)
            effects = (Effect(name=title(term), **reason) for term in terms)
        families.append(decide(effects, margin, level))
    return tuple(families)


def _estimates(
    design: Design, terms: Sequence[Term], scores: Scores, paired: bool, level: float
) -> Iterator[Effect]:
    """Yield effects with their errors.

    Each row has its own variance. It comes from the residuals of its runs: their scores minus the mean of the row and, if
    rows are paired, minus the effect of the seed. The degrees of freedom are Satterthwaite's, but at most
    (n - 1) log2(R) / 2 for R rows of n runs. Without this limit, tests find false effects too often if the rows have very
    different variances.
    """
    seeds = sorted(set.intersection(*(set(scores[row]) for row in design.rows)))
    missing = [row for row in design.rows if not scores[row]]
    reason = f'not estimable without {", ".join(missing)}' if missing else NOT_MEASURED
    if not seeds:
        yield from (Effect(name=title(term), verdict=reason) for term in terms)
        return
    table = np.array([[scores[row][seed] for seed in seeds] for row in design.rows])
    rows, runs = table.shape
    residual = table - table.mean(1, keepdims=True)
    if paired:
        residual -= residual.mean(0)
    freedom = (runs - 1) * ((rows - 1) / rows if paired else 1)
    with np.errstate(invalid='ignore'):
        parts = (residual**2).sum(1) / freedom * 4 / (rows**2 * runs)
    for term in terms:
        signs = np.array(list(design.signs(term).values()))
        by_seed = tuple((2 / rows * signs @ table).tolist())
        effect = Effect(name=title(term), estimate=mean(by_seed), by_seed=by_seed, paired=paired)
        if runs == 1:
            yield replace(effect, verdict=ONE_SEED)
            continue
        square = parts.sum()
        satterthwaite = square**2 / (parts**2 / freedom).sum() if square else 0.0
        limit = (runs - 1) * math.log2(rows) / 2
        effect = replace(effect, freedom=float(min(limit, satterthwaite)))
        yield with_error(effect, math.sqrt(square), level)
