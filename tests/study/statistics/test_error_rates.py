"""Simulated error rates of verdicts: at or below 5 % per family, for rows that are equal or differ by exactly the margin."""

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from mmairl.study.statistics.compare import factor_effects
from mmairl.study.statistics.contrasts import (
    EQUIVALENT,
    HIGHER,
    LEVEL,
    LOWER,
    MORE_COLLAPSES,
    contrast,
    decide,
)
from mmairl.study.statistics.designs import fraction_rows

DRAWS = 2000
# The largest rate that is compatible with 5 %: two standard errors of the simulation above it.
MOST = LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / DRAWS)
DIFFERENCES = {HIGHER, LOWER, MORE_COLLAPSES}
SPREADS = {  # the standard deviation of the runs of each row
    'equal': [2.0] * 7,
    'measured': [3.2, 2.0, 4.0, 6.0, 5.8, 5.4, 1.4],
    'one of 50 times': [0.1, 0.1, 0.1, 5.0, 0.1, 0.1, 0.1],
}


def tables(spreads, seeds: int, paired: bool, draws: int = DRAWS) -> Iterator[np.ndarray]:
    """Yield the scores (row, seed) of equal rows. If `paired`, each seed shifts the scores of all rows."""
    draw = np.random.default_rng(seeds)
    for _ in range(draws):
        shift = 3 * draw.normal(size=seeds) * paired
        yield (30 + shift + np.array(spreads)[:, None] * draw.normal(size=(len(spreads), seeds)))


def chain(table, paired, margin=1.0, level=LEVEL, collapsed=None):
    """Return the verdicts on rows that are each compared with the previous row."""
    scores = {str(row): dict(enumerate(values.tolist())) for row, values in enumerate(table)}
    effects = []
    for row in range(1, len(table)):
        weights = {str(row): 1, str(row - 1): -1}
        effects.append(contrast(weights, scores, paired, collapsed, level))
    return {effect.verdict for effect in decide(effects, margin, level)}


def rate(verdicts, wrong) -> float:
    return sum(bool(found & wrong) for found in verdicts) / DRAWS


def record_of(table, levels, paired):
    rows = []
    for number, scores in enumerate(table):
        runs = []
        for seed, score in enumerate(scores.tolist()):
            start = dict(weights='a', shapes='b', order=seed) if paired else None
            runs.append(dict(seed=seed, state='done', scores={'knn': score}, start=start))
        rows.append(dict(name=str(number), runs=runs))
    factors = 'abcde'[: len(levels[0])]
    return dict(
        rows=rows,
        design=dict(
            factors=factors,
            rows=dict(zip(map(str, range(len(levels))), levels)),
        ),
    )


def tuned_scores(draw, trials: int, sharp: float, best: float) -> float:
    """Return the score of a fresh run with the setting of the best of several trials.

    The expected score is 80 at the best setting, and falls by `sharp` times the squared distance from it.
    """
    points = draw.uniform(-1, 1, trials)
    true = 80 - sharp * (points - best) ** 2
    chosen = (true + draw.normal(0, 2.8, trials)).argmax()
    return true[chosen] + draw.normal(0, 2.8)


@pytest.mark.slow
def test_error_rates_stay_at_or_below_the_nominal_level():
    rates = {}
    for seeds, paired in ((3, True), (3, False), (5, False)):
        for name in ('one of 50 times',) if seeds == 5 else SPREADS:
            spreads = SPREADS[name]
            found = [chain(table, paired) for table in tables(spreads, seeds, paired)]
            rates['difference', name, seeds, paired] = rate(found, DIFFERENCES)
        edges = []
        for table in tables([2.0] * 4, seeds, paired):
            shifted = table + 1.0 * np.arange(4)[:, None]  # Each row is exactly the margin better
            edges.append(chain(shifted, paired))
        rates['equivalence', seeds, paired] = rate(edges, {EQUIVALENT})
        for levels in (
            list(product((0, 1), repeat=2)),
            fraction_rows(4, Fraction(1, 2)),
        ):
            spreads = np.geomspace(0.5, 4, len(levels))
            found = []
            for table in tables(spreads, seeds, paired, DRAWS // 2):
                main = factor_effects(record_of(table, levels, paired), 'knn', 1.0)
                found.append({effect.verdict for effect in main})
            rates['factors', len(levels), seeds, paired] = 2 * rate(found, DIFFERENCES)
    for seeds in (3, 5):
        # Analyses after 3 and after all seeds. A decision of any analysis counts.
        looks = []
        for table in tables([2.0] * 7, 2 * seeds, paired=True):
            looks.append(
                chain(table[:, :seeds], True, level=LEVEL / 2) | chain(table, True, level=LEVEL / 2)
            )
        rates['interim analyses', seeds] = rate(looks, DIFFERENCES)
        draw = np.random.default_rng(seeds)
        tuned = []
        for _ in range(DRAWS):
            flat = [tuned_scores(draw, 20, 1.0, 0.0) for _ in range(seeds)]
            sharp = [tuned_scores(draw, 20, 1.0, 0.7) for _ in range(seeds)]
            tuned.append(chain(np.array([flat, sharp]), paired=False))
        rates['tuned rows', seeds] = rate(tuned, DIFFERENCES)
        collapses = []
        for table in tables([2.0] * 7, seeds, False):
            down = draw.random(table.shape) < 0.1
            collapsed = {str(row): np.flatnonzero(flags).tolist() for row, flags in enumerate(down)}
            collapses.append(chain(table, False, collapsed=collapsed))
        rates['one run in ten collapses', seeds] = rate(collapses, DIFFERENCES)
    assert {case: value for case, value in rates.items() if value > MOST} == {}
