"""What the runs of a study say about each declared difference: an estimate, an interval, and a verdict in words.

Each row is compared with the row that it builds on. Where a seed means the same in both rows (equal initial weights and order
of images, as the runs recorded them), the seeds are blocks: the differences seed by seed are tested. Elsewhere Welch's test is.
Each comparison has its own spread. One spread pooled over all rows would find more, but where rows spread as unequally as the
demo's ladder does (standard deviations of 0.7 to 6.0), it calls equal rows different in 12 % of ladders.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

LEVEL = 0.05  # of the family: the chance of at least one false 'differs' among the comparisons of one score
POWER = 0.8
MARGIN = 1.0  # points: rows that are closer than this count as equivalent, unless the study declares another
MOST = 1000  # seeds, beyond which --power says "more"
DECISIONS = DIFFERS, EQUIVALENT = 'differs', 'equivalent'
UNDECIDED = 'undecided'


@dataclass(frozen=True)
class Comparison:
    """A row less the row that it builds on, by one score. What cannot be told is None, and `verdict` says why."""

    row: str
    on: str
    metric: str
    margin: float
    seeds: int  # of the row with fewer, or that both have where they are blocks
    blocks: bool
    verdict: str
    estimate: float | None = None
    low: float | None = None  # the ends of the 95 % interval, of this comparison alone
    high: float | None = None
    better: float | None = None  # the probability that the row is the better one
    error: float | None = None  # the standard error
    freedom: float | None = None  # degrees of freedom


def paired(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean difference, its standard error and degrees of freedom; the last axis are seeds, the same in both."""
    difference, n = one - two, one.shape[-1]
    error = difference.std(-1, ddof=1) / math.sqrt(n)
    return difference.mean(-1), error, np.full_like(error, n - 1)


def welch(one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of two independent sets of seeds with spreads of their own."""
    a, b = (values.var(-1, ddof=1) / values.shape[-1] for values in (one, two))
    with np.errstate(invalid='ignore'):
        freedom = (a + b) ** 2 / (a**2 / (one.shape[-1] - 1) + b**2 / (two.shape[-1] - 1))
    return one.mean(-1) - two.mean(-1), np.sqrt(a + b), freedom


def holm(p: np.ndarray) -> np.ndarray:
    """p-values of a family (the last axis) adjusted by Holm: the smallest times m, the next times m - 1, never falling."""
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(1, np.maximum.accumulate(steps, axis=-1)), -1)
    return adjusted


def verdicts(
    estimate: np.ndarray,
    error: np.ndarray,
    freedom: np.ndarray,
    margin: float,
    level: float = LEVEL,
    known: np.ndarray | None = None,
) -> np.ndarray:
    """A word for each comparison of a family (the last axis); where there is no error (NaN) it is undecided, and still counts.

    Different: a two-sided t-test. Equivalent: the larger of two one-sided tests that the difference lies beyond the margin.
    What is `known` from an earlier look was rejected there: its p-value is 0, or 1 for the other word.
    """
    p_equal = 2 * stats.t.sf(abs(estimate) / error, freedom)
    p_apart = stats.t.sf((margin - abs(estimate)) / error, freedom)
    if known is not None:
        for word, p in zip(DECISIONS, (p_equal, p_apart)):
            p[...] = np.select([known == word, np.isin(known, DECISIONS)], [0.0, 1.0], p)
    different, equivalent = (holm(np.where(np.isnan(p), 1.0, p)) < level for p in (p_equal, p_apart))
    return np.select([different, equivalent], DECISIONS, UNDECIDED)


def compare(
    study: Mapping[str, Any], metric: str, margin: float, level: float = LEVEL, known: Sequence[str] | None = None
) -> list[Comparison]:
    """Every declared comparison of a study's record by one score, as one family; its intervals hold at the level, too."""
    rows = {row['name']: row for row in study['rows']}
    found = [_compare(row, rows[row['on']], metric, margin, level) for row in study['rows'] if row.get('on') in rows]
    numbers = [[math.nan if value is None else value for value in (c.estimate, c.error, c.freedom)] for c in found]
    if not found:
        return []
    words = verdicts(*np.array(numbers).T, margin, level, None if known is None else np.array(known))
    return [replace(c, verdict=c.verdict or str(word)) for c, word in zip(found, words)]


def _compare(row: Mapping, base: Mapping, metric: str, margin: float, level: float) -> Comparison:
    """One comparison without its verdict, which the family decides; or with the reason why there is none."""
    one, two = scores_by_seed(row, metric), scores_by_seed(base, metric)
    common = sorted(one.keys() & two.keys())
    blocks = len(common) > 1 and all(same_start(row, base, seed) for seed in common)
    seeds = len(common) if blocks else min(len(one), len(two))
    known = dict(row=row['name'], on=base['name'], metric=metric, margin=margin, seeds=seeds, blocks=blocks)
    if seeds == 0:
        return Comparison(**known, verdict='not measured')
    if blocks:
        pair = [np.array([of[seed] for seed in common]) for of in (one, two)]
    else:
        pair = [np.array(list(of.values())) for of in (one, two)]
    if seeds == 1:
        return Comparison(**known, verdict='one seed: no verdict', estimate=float(pair[0].mean() - pair[1].mean()))
    estimate, error, freedom = map(float, (paired if blocks else welch)(*pair))
    if error == 0:
        return Comparison(**known, verdict='no spread: no verdict', estimate=estimate)
    better = float(stats.t.cdf(estimate / error, freedom))
    ends = interval(estimate, error, freedom, level)
    return Comparison(**known, **ends, verdict='', better=better, error=error, freedom=freedom)


def interval(estimate: float, error: float, freedom: float, level: float = LEVEL) -> dict[str, float]:
    """The estimate and the ends that Student's t puts around it."""
    half = float(stats.t.ppf(1 - level / 2, freedom)) * error
    return dict(estimate=estimate, low=estimate - half, high=estimate + half)


def mean_intervals(study: Mapping[str, Any], metric: str) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each row's mean by one score, of the rows with two seeds or more."""
    intervals = {}
    for row in study['rows']:
        scores = np.array(list(scores_by_seed(row, metric).values()))
        if len(scores) > 1:
            ends = interval(scores.mean(), scores.std(ddof=1) / math.sqrt(len(scores)), len(scores) - 1)
            intervals[row['name']] = (float(ends['low']), float(ends['high']))
    return intervals


def scores_by_seed(row: Mapping, metric: str) -> dict[int, float]:
    """The finite scores of the finished runs."""
    found = {run['seed']: run.get('scores', {}).get(metric) for run in row['runs'] if run['state'] == 'done'}
    return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}


def same_start(row: Mapping, base: Mapping, seed: int) -> bool:
    """Whether a seed means the same in two rows: the same order of images, and the same weights of networks of one shape."""
    one, two = (next(run for run in of['runs'] if run['seed'] == seed).get('start') for of in (row, base))
    if not one or not two or None in (one['order'], two['order']) or one['order'] != two['order']:
        return False
    return one['weights'] == two['weights'] or one['shapes'] != two['shapes']


def power(effect: float, deviation: float, seeds: int, blocks: bool, comparisons: int) -> float:
    """The chance that `seeds` runs a row find an effect by Holm's first step, the strictest.

    `deviation` is that of the differences seed by seed where seeds are blocks, and else the root of the sum of both variances.
    """
    return chance(effect, deviation / math.sqrt(seeds), (seeds - 1) * (1 if blocks else 2), comparisons)


def chance(effect: float, error: float, freedom: float, comparisons: int) -> float:
    """That a t-test with this standard error finds an effect, at the level of Holm's first step."""
    limit, shift = stats.t.ppf(1 - LEVEL / 2 / comparisons, freedom), abs(effect) / error
    wrong_side = stats.nct.cdf(-limit, freedom, shift)  # scipy has NaN for some that are next to nothing
    return float(stats.nct.sf(limit, freedom, shift) + np.nan_to_num(wrong_side))


def seeds_for(effect: float, deviation: float, blocks: bool, comparisons: int) -> int | None:
    """The fewest seeds a row that find the effect four times in five; None for more than MOST."""
    counts = range(2, MOST + 1)
    return next((n for n in counts if power(effect, deviation, n, blocks, comparisons) >= POWER), None)


def visible_effect(deviation: float, seeds: int, blocks: bool, comparisons: int) -> float:
    """The effect that so many seeds find four times in five."""
    high = deviation
    while power(high, deviation, seeds, blocks, comparisons) < POWER:
        high *= 2
    return float(brentq(lambda effect: power(effect, deviation, seeds, blocks, comparisons) - POWER, 0, high))


def plan_seeds(comparisons: Sequence[Comparison], effect: float) -> list[tuple[str, str, str, str, str]]:
    """For each comparison: row, spread, seeds, what they can see, and how many `effect` wants, as text.

    The spread is itself an estimate from few seeds, so these are no promises.
    """
    lines = []
    for of in comparisons:
        if of.error is None:
            lines.append((of.row, '–', str(of.seeds), '–', '–'))
            continue
        spread, known = of.error * math.sqrt(of.seeds), (of.blocks, len(comparisons))
        wanted = seeds_for(effect, spread, *known)
        seen = visible_effect(spread, of.seeds, *known)
        lines.append((of.row, f'{spread:.2f}', str(of.seeds), f'{seen:.1f}', str(wanted or f'more than {MOST}')))
    return lines
