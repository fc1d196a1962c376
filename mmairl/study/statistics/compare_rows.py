"""Compares each row of a study with the row that it builds on: an estimate, an interval, and a verdict in words.

Where a seed means the same in both rows (equal initial weights and order of images, as the runs recorded them), the seeds are
blocks: the differences seed by seed are tested. Elsewhere the rows are independent, each with a spread of its own. Both are
t-tests with one degree of freedom fewer than the seeds of the row with fewer: for normal scores that keeps the level at any two
spreads (Mickey and Brown, 1966), which Welch's does not at two or three seeds, nor where one row has fewer runs.

A run that collapsed is no draw from the spread of those that learned. Means are of the runs that learned. Where a run of
either row collapsed, the means get no verdict, and Fisher's exact test compares how many did.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import brentq

LEVEL = 0.05  # of the family: the chance of at least one false 'differs' among the comparisons of one score
MARGIN = 1.0  # points: rows that are closer than this count as equivalent, unless the study declares another
TIED = 1e-9  # points: runs whose spread is less are equal but for rounding
DECISIONS = DIFFERS, EQUIVALENT = 'differs', 'equivalent'
UNDECIDED = 'undecided'
COLLAPSED = 'runs collapsed: no verdict by the mean'
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]


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
    improvement: tuple[float, float, float] | None = None  # the probability of it, and the ends of its 95 % interval
    error: float | None = None  # the standard error
    freedom: float | None = None  # degrees of freedom
    deviation: float | None = None  # of a seed's difference, or that of two runs
    collapsed: tuple[int, int] = (0, 0)  # runs of the row, and of the one that it builds on
    share: float | None = None  # the exact test's p-value for these, where there are any
    spread: tuple[float, ...] = ()  # the estimate seed by seed, or by each run of the row where seeds are no blocks


def paired(one: np.ndarray, two: np.ndarray) -> Numbers:
    """Mean difference, standard error and degrees of freedom; the last axis are seeds, the same in both, NaN where missing."""
    count, mean, square = _moments(one - two)
    return mean, known_error(square), count - 1.0


def unpaired(one: np.ndarray, two: np.ndarray) -> Numbers:
    """The same of two independent sets of seeds with spreads of their own."""
    (n, mean, square), (m, other, another) = _moments(one), _moments(two)
    return mean - other, known_error(square + another), np.minimum(n, m) - 1.0


def _moments(values: np.ndarray) -> Numbers:
    """Count, mean and its squared standard error, of what is there on the last axis; NaN where there is too little."""
    count = np.sum(~np.isnan(values), -1)
    with np.errstate(invalid='ignore', divide='ignore'):
        mean = np.nansum(values, -1) / count
        return count, mean, np.nansum((values - mean[..., None]) ** 2, -1) / (count - 1) / count


def known_error(square: np.ndarray) -> np.ndarray:
    """A standard error; NaN where the runs are equal but for rounding."""
    return np.where(square > TIED**2, np.sqrt(square), math.nan)


def collapse_limit(scores: np.ndarray, null: float | None = None) -> np.ndarray:
    """Return for each row the score below which a run has collapsed; scores are (..., rows, seeds), NaN where missing.

    With the score of the study's untrained rows: where a run gained less than a quarter of what the median run gained over it.
    Without: where it has less than two fifths of the row's best run.
    """
    if null is None:
        best = np.nanmax(scores, -1)
        return best - 0.6 * abs(best)
    gain = np.maximum(0, np.nanmedian(scores, (-2, -1)) - null)
    return np.broadcast_to(null + gain[..., None] / 4, scores.shape[:-1])


def tested(one: np.ndarray, two: np.ndarray, limits: Sequence[np.ndarray], blocks: bool) -> tuple[np.ndarray, ...]:
    """Compare the runs that learned, and by the exact test how many did not: its p-value, NaN where none collapsed."""
    fell = [values < limit[..., None] for values, limit in zip((one, two), limits)]
    counts = [mask.sum(-1) for pair in zip(fell, (~np.isnan(one), ~np.isnan(two))) for mask in pair]
    share = np.where(counts[0] + counts[2] > 0, exact_test(*counts), math.nan)
    learned = (np.where(collapsed, math.nan, values) for values, collapsed in zip((one, two), fell))
    return *(paired if blocks else unpaired)(*learned), share


@np.vectorize
@cache
def exact_test(some: int, runs: int, others: int, other_runs: int) -> float:
    """Fisher's p-value for `some` of so many runs against `others` of so many."""
    return float(stats.fisher_exact([[some, runs - some], [others, other_runs - others]]).pvalue)


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
    share: np.ndarray | float = math.nan,
) -> np.ndarray:
    """A word for each comparison of a family (the last axis); where there is no error (NaN) it is undecided, and still counts.

    Different: a two-sided t-test. Equivalent: the larger of two one-sided tests that the difference lies beyond the margin.
    Where runs collapsed the exact test's p-value `share` is in place of the first, and there is no second.
    What is `known` from an earlier look was rejected there: its p-value is 0, or 1 for the other word.
    """
    p_equal = 2 * stats.t.sf(abs(estimate) / error, freedom)
    p_apart = stats.t.sf((margin - abs(estimate)) / error, freedom)
    p_equal, p_apart = np.where(np.isnan(share), p_equal, share), np.where(np.isnan(share), p_apart, 1.0)
    if known is not None:
        for word, p in zip(DECISIONS, (p_equal, p_apart)):
            p[...] = np.select([known == word, np.isin(known, DECISIONS)], [0.0, 1.0], p)
    different, equivalent = (holm(np.where(np.isnan(p), 1.0, p)) < level for p in (p_equal, p_apart))
    return np.select([different, equivalent], DECISIONS, UNDECIDED)


def compare(
    study: Mapping[str, Any], metric: str, margin: float, level: float = LEVEL, known: Sequence[str] | None = None
) -> list[Comparison]:
    """Every declared comparison of a study's record by one score, as one family; its intervals hold at the level, too."""
    rows, limits = {row['name']: row for row in study['rows']}, limits_by_row(study, metric)
    pairs = [(row, rows[row['on']]) for row in study['rows'] if row.get('on') in rows]
    found = [
        _compare(*pair, [limits.get(row['name'], -math.inf) for row in pair], metric, margin, level) for pair in pairs
    ]
    if not found:
        return []
    numbers = [(c.estimate, c.error, c.freedom, c.share) for c in found]
    *numbers, share = np.array(numbers, float).T  # None becomes NaN
    words = verdicts(*numbers, margin, level, None if known is None else np.array(known), share)
    said = [str(word) if not c.verdict or word == DIFFERS else c.verdict for c, word in zip(found, words)]
    return [replace(c, verdict=verdict) for c, verdict in zip(found, said)]


def _compare(
    row: Mapping, base: Mapping, limits: Sequence[float], metric: str, margin: float, level: float
) -> Comparison:
    """One comparison without its verdict, which the family decides; or with the reason why there is none."""
    one, two = scores_by_seed(row, metric), scores_by_seed(base, metric)
    common = sorted(one.keys() & two.keys())
    blocks = len(common) > 1 and all(same_start(row, base, seed) for seed in common)
    pair = [np.array([scores.get(seed, math.nan) for seed in sorted(one.keys() | two.keys())]) for scores in (one, two)]
    known = dict(row=row['name'], on=base['name'], metric=metric, margin=margin, blocks=blocks)
    if not one or not two:
        return Comparison(**known, seeds=0, verdict='not measured')
    *numbers, share = tested(*pair, [np.array(limit) for limit in limits], blocks)
    estimate, error, freedom = map(float, numbers)
    fell = tuple(int(np.sum(scores < limit)) for scores, limit in zip(pair, limits))
    known |= dict(
        seeds=len(common) if blocks else min(len(one), len(two)),
        improvement=improvement(list(one.values()), list(two.values())),
        collapsed=fell,
        share=float(share) if any(fell) else None,
    )
    if math.isnan(error):
        verdict = COLLAPSED if any(fell) else 'one seed: no verdict' if known['seeds'] == 1 else 'no spread: no verdict'
        return Comparison(**known, verdict=verdict, estimate=None if math.isnan(estimate) else estimate)
    learned = [np.where(scores < limit, math.nan, scores) for scores, limit in zip(pair, limits)]
    spread = learned[0] - (learned[1] if blocks else np.nanmean(learned[1]))
    deviation = np.nanstd(spread, ddof=1) if blocks else math.hypot(*(np.nanstd(scores, ddof=1) for scores in learned))
    known |= dict(error=error, freedom=freedom, deviation=float(deviation))
    known['spread'] = tuple(map(float, spread[~np.isnan(spread)]))
    return Comparison(**known, **interval(estimate, error, freedom, level), verdict=COLLAPSED if any(fell) else '')


def limits_by_row(study: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return the score below which a run of each row has collapsed, by what the study's untrained rows score."""
    found = {row['name']: scores for row in study['rows'] if (scores := scores_by_seed(row, metric))}
    nulls = [
        mean(found.pop(row['name']).values()) for row in study['rows'] if row.get('untrained') and row['name'] in found
    ]
    if not found:
        return {}
    seeds = set().union(*found.values())
    table = np.array([[scores.get(seed, math.nan) for seed in seeds] for scores in found.values()])
    return dict(zip(found, map(float, collapse_limit(table, max(nulls, default=None)))))


def improvement(one: Sequence[float], two: Sequence[float]) -> tuple[float, float, float]:
    """The probability that a run of the first row is better than one of the second, as rliable has it (Mann and Whitney's).

    Its 95 % interval is Newcombe's (2006, method 5), which is not of width zero where all are better.
    """
    higher = np.sign(np.subtract.outer(one, two))
    share, each = float(higher.mean() / 2 + 0.5), (len(one) + len(two)) / 2 - 1

    def beyond(at: float) -> float:
        variance = at * (1 - at) / higher.size * (1 + each * ((1 - at) / (2 - at) + at / (1 + at)))
        return (share - at) ** 2 - stats.norm.ppf(0.975) ** 2 * variance

    low = brentq(beyond, 0, share - 1e-9) if share > 0 else 0.0
    return share, float(low), float(brentq(beyond, share + 1e-9, 1)) if share < 1 else 1.0


def interval(estimate: float, error: float, freedom: float, level: float = LEVEL) -> dict[str, float | None]:
    """The estimate and the ends that Student's t puts around it, which are None where the error is not known (NaN)."""
    if math.isnan(error):
        return dict(estimate=estimate, low=None, high=None)
    half = float(stats.t.ppf(1 - level / 2, freedom)) * error
    return dict(estimate=estimate, low=estimate - half, high=estimate + half)


def mean_intervals(study: Mapping[str, Any], metric: str) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each row's mean by one score, of the rows with two seeds or more."""
    intervals = {}
    for row in study['rows']:
        count, mean, square = _moments(np.array(list(scores_by_seed(row, metric).values())))
        if count > 1:
            ends = interval(mean, math.sqrt(square), count - 1)
            intervals[row['name']] = (float(ends['low']), float(ends['high']))
    return intervals


def scores_by_seed(row: Mapping, metric: str) -> dict[int, float]:
    """The finite scores of the finished runs."""
    found = {run['seed']: run.get('scores', {}).get(metric) for run in row['runs'] if run['state'] == 'done'}
    return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}


def same_start(row: Mapping, base: Mapping, seed: int) -> bool:
    """Whether a seed means the same in two rows: the same order of images, and the same weights of networks of one shape."""
    one, two = (next(run for run in side['runs'] if run['seed'] == seed).get('start') for side in (row, base))
    if not one or not two or None in (one['order'], two['order']) or one['order'] != two['order']:
        return False
    return one['weights'] == two['weights'] or one['shapes'] != two['shapes']
