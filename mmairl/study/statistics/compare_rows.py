"""Compare each row of a study with its base row: compute an estimate, an interval and a verdict.

A row is one configuration of the study, trained with several seeds. Its base row is the row with which it is compared. Seeds
are blocks if the runs of both rows with the same seed have the same initial weights and the same order of images
(`same_start`). The rows are then paired by seed, and the differences between runs of the same seed are tested. Otherwise,
the rows are independent samples with different variances. Both tests are t-tests with n - 1 degrees of freedom, where n is
the number of pairs or, for independent samples, the number of runs in the smaller sample. If scores are normally
distributed, the error rate of these tests does not exceed its nominal level for any two variances (Mickey and Brown, 1966).
The error rate of Welch's test exceeds this level with two or three seeds or with unequal numbers of runs.

A run has collapsed if its score is far below the scores of runs that learned (`collapse_limit`). A collapsed run is not a
sample from their distribution, so means exclude it. If a run of either row collapsed, the means are not tested. Instead,
Fisher's exact test compares how many runs collapsed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

# scipy imports `scipy.stats` on first use, so commands that only print a plan do not wait for this import.
import scipy

from mmairl.study.statistics.verdict_words import (
    COLLAPSED,
    DECISIONS,
    DIFFERS,
    EQUIVALENT,
    NO_SPREAD,
    ONE_SEED,
    UNDECIDED,
    verdict_of,
)

# The limit on the chance of one or more false differences among all comparisons by one score.
LEVEL = 0.05
# Differences below this number of points are equivalent, unless the study declares another margin.
MARGIN = 1.0
# A standard error below this number of points is due to rounding, so it counts as unknown.
TIED = 1e-9
# The arrays are estimates, their standard errors and their degrees of freedom.
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]
# A record is the content of study.json, or of one of its rows or runs.
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """The difference in one score between a row and its base row.

    Numbers that cannot be computed are None.

    Args:
        row: Name of the row.
        on: Name of its base row.
        metric: Key of the score.
        margin: Differences below the margin are equivalent.
        seeds: If seeds are blocks, the number of seeds that both rows have; otherwise, the number of seeds of the row with
            fewer seeds. 0 if one of the rows has no score.
        blocks: Whether seeds are blocks, so that the rows are paired by seed.
        verdict: The decision, or the reason why there is none.
        estimate: Mean of the row minus mean of its base row. If seeds are blocks, both means are over the seeds that both
            rows have.
        low: Lower end of the interval, which is not corrected for the number of comparisons. The interval covers 95 %, or
            more in a sequential analysis.
        high: Upper end of this interval.
        improvement: Probability that a run of the row is better than a run of its base row, with its 95 % interval.
        error: Standard error of the estimate.
        freedom: Degrees of freedom of the error.
        deviation: Standard deviation of the difference between a run of the row and a run of its base row. If seeds are
            blocks, both runs have the same seed.
        collapsed: Number of collapsed runs in the row and in its base row.
        share: p-value of Fisher's exact test of these two numbers; None if no run collapsed.
        spread: If seeds are blocks, the difference for each seed; otherwise, the difference between each run of the row and
            the mean of the base row.
    """

    row: str
    on: str
    metric: str
    margin: float
    seeds: int
    blocks: bool
    verdict: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    improvement: tuple[float, float, float] | None = None
    error: float | None = None
    freedom: float | None = None
    deviation: float | None = None
    collapsed: tuple[int, int] = (0, 0)
    share: float | None = None
    spread: tuple[float, ...] = ()


def paired(one: np.ndarray, two: np.ndarray) -> Numbers:
    """Return the mean difference between paired runs, its standard error, and n - 1 degrees of freedom for n pairs.

    Args:
        one: (..., seeds) The scores of the first row; NaN for a missing run.
        two: (..., seeds) The scores of the second row, with the seeds in the same order.
    """
    count, estimate, square = _moments(one - two)
    return estimate, known_error(square), count - 1.0


def unpaired(one: np.ndarray, two: np.ndarray) -> Numbers:
    """Return the difference between the means of two independent samples, its standard error, and its degrees of freedom.

    The samples have n and m runs and the standard deviations s1 and s2. The standard error is sqrt(s1^2 / n + s2^2 / m), and
    the degrees of freedom are min(n, m) - 1.

    Args:
        one: (..., seeds) The scores of the first sample; NaN for a missing run.
        two: (..., seeds) The scores of the second sample.
    """
    n, mean_one, square_one = _moments(one)
    m, mean_two, square_two = _moments(two)
    error = known_error(square_one + square_two)
    return mean_one - mean_two, error, np.minimum(n, m) - 1.0


def _moments(values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the number of values, their mean, and the squared standard error of the mean, all along the last axis.

    NaN marks a missing value. A result is NaN if there are too few values to compute it.
    """
    count = np.sum(~np.isnan(values), -1)
    with np.errstate(invalid='ignore', divide='ignore'):
        center = np.nansum(values, -1) / count
        squares = np.nansum((values - center[..., None]) ** 2, -1)
        return count, center, squares / (count - 1) / count


def known_error(square: np.ndarray) -> np.ndarray:
    """Return the square root of a squared standard error; NaN if it is so small that the runs differ only by rounding."""
    return np.where(square > TIED**2, np.sqrt(square), math.nan)


def collapse_limit(scores: np.ndarray, null: float | None = None) -> np.ndarray:
    """Return, for each row, the score below which a run has collapsed.

    A study may have untrained rows, which are baselines without pre-training. The gain of a run is then its score minus the
    best mean score of an untrained row, and a run has collapsed if its gain is less than a quarter of the median gain of all
    trained runs of the study. A negative median gain counts as 0. Without untrained rows, a run has collapsed if its score
    is less than two fifths of the best score in its row.

    Args:
        scores: (..., rows, seeds) The scores; NaN for a missing run.
        null: The best mean score of an untrained row; None without untrained rows.
    """
    if null is None:
        best = np.nanmax(scores, -1)
        return best - 0.6 * abs(best)
    median = np.nanmedian(scores, (-2, -1))
    gain = np.maximum(0, median - null)
    return np.broadcast_to(null + gain[..., None] / 4, scores.shape[:-1])


def tested(
    one: np.ndarray,
    two: np.ndarray,
    limits: Sequence[np.ndarray],
    blocks: bool,
) -> tuple[np.ndarray, ...]:
    """Compare two rows by the means of the runs that learned, and by the numbers of collapsed runs.

    Args:
        one: (..., seeds) The scores of the first row; NaN for a missing run.
        two: (..., seeds) The scores of the second row.
        limits: For each of the two rows, the score below which a run has collapsed.
        blocks: Whether the rows are paired by seed.

    Returns:
        The difference between the means, its standard error and its degrees of freedom, followed by the p-value of
            Fisher's exact test. The p-value is NaN if no run collapsed.
    """
    learned = []
    counts = []
    for scores, limit in zip((one, two), limits):
        collapsed = scores < limit[..., None]
        learned.append(np.where(collapsed, math.nan, scores))
        counts += [collapsed.sum(-1), (~np.isnan(scores)).sum(-1)]
    any_collapsed = counts[0] + counts[2] > 0
    share = np.where(any_collapsed, exact_test(*counts), math.nan)
    test = paired if blocks else unpaired
    return *test(*learned), share


@np.vectorize
@cache
def exact_test(
    some: int,
    runs: int,
    others: int,
    other_runs: int,
) -> float:
    """Return the p-value of Fisher's exact test that compares `some` of `runs` with `others` of `other_runs`."""
    table = [[some, runs - some], [others, other_runs - others]]
    return float(scipy.stats.fisher_exact(table).pvalue)


def holm(p: np.ndarray) -> np.ndarray:
    """Return the p-values of a family (the last axis) after Holm's correction.

    The smallest of m p-values is multiplied by m, the next one by m - 1, and so on. Each adjusted p-value is at least as
    large as the previous one, and at most 1.
    """
    order = np.argsort(p, axis=-1)
    factors = np.arange(p.shape[-1], 0, -1)
    steps = np.take_along_axis(p, order, -1) * factors
    rising = np.minimum(1, np.maximum.accumulate(steps, axis=-1))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, rising, -1)
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
    """Return the decision on each comparison of a family.

    A family is the set of comparisons that Holm's correction treats together; it is the last axis of all arrays. A
    comparison without a p-value stays undecided, but it counts toward the size of the family.

    Args:
        estimate: The differences.
        error: Their standard errors.
        freedom: Degrees of freedom of the errors.
        margin: Differences below the margin are equivalent.
        level: Limit of the chance of one or more false differences in the family. The same limit applies to false
            equivalences.
        known: Decisions of an earlier analysis, which are final. To repeat a decision, the test that led to it gets the
            p-value 0, and the other test of the same comparison gets 1.
        share: p-values of Fisher's exact test, NaN for comparisons without collapsed runs. Where there is such a
            p-value, it replaces the p-value of the difference, and the comparison cannot be equivalent.
    """
    by_counts = ~np.isnan(share)
    p_equal = 2 * scipy.stats.t.sf(abs(estimate) / error, freedom)
    # Equivalence requires two one-sided tests. This is the larger of their p-values.
    p_apart = scipy.stats.t.sf((margin - abs(estimate)) / error, freedom)
    p_equal = np.where(by_counts, share, p_equal)
    p_apart = np.where(by_counts, 1.0, p_apart)
    if known is not None:
        p_equal = _with_known(p_equal, known, DIFFERS)
        p_apart = _with_known(p_apart, known, EQUIVALENT)
    rejected = [holm(np.where(np.isnan(p), 1.0, p)) < level for p in (p_equal, p_apart)]
    return np.select(rejected, DECISIONS, UNDECIDED)


def _with_known(p: np.ndarray, known: np.ndarray, decision: str) -> np.ndarray:
    return np.select([known == decision, np.isin(known, DECISIONS)], [0.0, 1.0], p)


def compare_scores(
    study: Record,
    metric: str,
    margin: float,
    level: float = LEVEL,
    known: Sequence[str] | None = None,
) -> list[Comparison]:
    """Return all comparisons that a study declares, by one score, tested as one family.

    Args:
        study: The record of the study.
        metric: Key of the score.
        margin: Differences below the margin are equivalent.
        level: The error rate of the family. Each interval covers 1 - level.
        known: Decisions of an earlier analysis, which are final.
    """
    rows = {row['name']: row for row in study['rows']}
    limits = limits_by_row(study, metric)
    compared = [
        compare_pair(row, rows[row['on']], metric, margin, limits, level)
        for row in study['rows']
        if row.get('on') in rows
    ]
    if not compared:
        return []
    fields = ('estimate', 'error', 'freedom', 'share')
    columns = [[getattr(one, field) for one in compared] for field in fields]
    # The conversion to floats turns None into NaN.
    *numbers, share = np.array(columns, float)
    decisions = verdicts(*numbers, margin, level, None if known is None else np.array(known), share)
    return [with_verdict(one, str(decision)) for one, decision in zip(compared, decisions)]


def with_verdict(comparison: Comparison, decision: str) -> Comparison:
    """Return the comparison with the verdict that follows from the decision on it.

    If the comparison already has a reason for no verdict, it keeps this reason unless the exact test found a difference.
    """
    if comparison.verdict and decision != DIFFERS:
        return comparison
    by_counts = comparison.share is not None
    return replace(comparison, verdict=verdict_of(decision, comparison.estimate, by_counts))


def compare_pair(
    row: Record,
    base: Record,
    metric: str,
    margin: float,
    limits: Mapping[str, float],
    level: float = LEVEL,
) -> Comparison:
    """Compare a row with its base row, without a decision, because a decision requires the whole family.

    If the means cannot be tested, `verdict` has the reason; otherwise, it is empty.

    Args:
        row: The row.
        base: Its base row.
        metric: Key of the score.
        margin: Differences below the margin are equivalent.
        limits: For each row, by name, the score below which a run has collapsed.
        level: The interval covers 1 - level.
    """
    by_seed = [scores_by_seed(side, metric) for side in (row, base)]
    seeds = sorted(set().union(*by_seed))
    shared = [seed for seed in seeds if all(seed in scores for scores in by_seed)]
    compared = Comparison(
        row=row['name'],
        on=base['name'],
        metric=metric,
        margin=margin,
        seeds=0,
        blocks=len(shared) > 1 and all(same_start(row, base, seed) for seed in shared),
        verdict='not measured',
    )
    if not all(by_seed):
        return compared
    scores = np.array([[side.get(seed, math.nan) for seed in seeds] for side in by_seed])
    ends = np.array([limits.get(side['name'], -math.inf) for side in (row, base)])
    *numbers, share = tested(*scores, ends, compared.blocks)
    estimate, error, freedom = map(float, numbers)
    collapsed = scores < ends[:, None]
    count = len(shared) if compared.blocks else min(map(len, by_seed))
    compared = replace(
        compared,
        seeds=count,
        estimate=None if math.isnan(estimate) else estimate,
        improvement=improvement(*(list(side.values()) for side in by_seed)),
        collapsed=tuple(map(int, collapsed.sum(1))),
        share=float(share) if collapsed.any() else None,
        verdict=COLLAPSED if collapsed.any() else '',
    )
    if math.isnan(error):
        reason = ONE_SEED if count == 1 else NO_SPREAD
        return replace(compared, verdict=compared.verdict or reason)
    spread, deviation = _spread(*np.where(collapsed, math.nan, scores), compared.blocks)
    return replace(
        compared,
        error=error,
        freedom=freedom,
        deviation=deviation,
        spread=spread,
        **interval(estimate, error, freedom, level),
    )


def _spread(one: np.ndarray, two: np.ndarray, blocks: bool) -> tuple[tuple[float, ...], float]:
    """Return the difference for each seed or run, and the standard deviation of the difference between two runs.

    If seeds are blocks, there is one difference for each seed. Otherwise, there is one for each run of the first row: its
    score minus the mean of the second row.
    """
    if blocks:
        differences = one - two
        deviation = np.nanstd(differences, ddof=1)
    else:
        differences = one - np.nanmean(two)
        deviation = math.hypot(np.nanstd(one, ddof=1), np.nanstd(two, ddof=1))
    return tuple(differences[~np.isnan(differences)].tolist()), float(deviation)


def limits_by_row(study: Record, metric: str) -> dict[str, float]:
    """Return, for each trained row that has a score, the score below which a run has collapsed.

    Only scores in percent have this limit. For other scores, the dictionary is empty.
    """
    units = {known['key']: known.get('unit', '%') for known in study.get('metrics', ())}
    if units.get(metric, '%') != '%':
        return {}
    trained = {}
    nulls = []
    for row in study['rows']:
        scores = scores_by_seed(row, metric)
        if scores and row.get('untrained'):
            nulls.append(mean(scores.values()))
        elif scores:
            trained[row['name']] = scores
    if not trained:
        return {}
    seeds = set().union(*trained.values())
    table = np.array(
        [[scores.get(seed, math.nan) for seed in seeds] for scores in trained.values()]
    )
    limits = collapse_limit(table, max(nulls, default=None))
    return dict(zip(trained, map(float, limits)))


def improvement(one: Sequence[float], two: Sequence[float]) -> tuple[float, float, float]:
    """Return the probability that a run of the first row is better than a run of the second row, with its 95 % interval.

    The estimate is the statistic of Mann and Whitney, as in the library rliable. The interval is that of Newcombe (2006,
    method 5). Its width is not zero even if all runs of one row are better. It uses the quantile of a t distribution with 2
    (n - 1) degrees of freedom, where n is the smaller number of runs. With the normal quantile, the interval would cover
    only 90 % if the two rows have the same distribution and 3 runs each.
    """
    higher = np.sign(np.subtract.outer(one, two))
    share = float(higher.mean() / 2 + 0.5)
    runs = (len(one) + len(two)) / 2 - 1
    quantile = scipy.stats.t.ppf(0.975, 2 * max(1, min(len(one), len(two)) - 1))

    def beyond(at: float) -> float:
        """Return (share - at)^2 - t^2 var(at), which is zero if `at` is an end of the interval."""
        tails = (1 - at) / (2 - at) + at / (1 + at)
        variance = at * (1 - at) / higher.size * (1 + runs * tails)
        return (share - at) ** 2 - quantile**2 * variance

    low = scipy.optimize.brentq(beyond, 0, share - 1e-9) if share > 0 else 0.0
    high = scipy.optimize.brentq(beyond, share + 1e-9, 1) if share < 1 else 1.0
    return share, float(low), float(high)


def interval(
    estimate: float,
    error: float,
    freedom: float,
    level: float = LEVEL,
) -> dict[str, float | None]:
    """Return an estimate and its interval, estimate ± t(1 - level / 2, freedom) * error.

    The ends of the interval are None if the error is unknown (NaN).
    """
    if math.isnan(error):
        return dict(estimate=estimate, low=None, high=None)
    half = float(scipy.stats.t.ppf(1 - level / 2, freedom)) * error
    return dict(estimate=estimate, low=estimate - half, high=estimate + half)


def mean_intervals(study: Record, metric: str) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of the mean score of each row that has two seeds or more."""
    intervals = {}
    for row in study['rows']:
        scores = np.array(list(scores_by_seed(row, metric).values()))
        count, center, square = _moments(scores)
        if count > 1:
            ends = interval(center, math.sqrt(square), count - 1)
            intervals[row['name']] = (float(ends['low']), float(ends['high']))
    return intervals


def scores_by_seed(row: Record, metric: str) -> dict[int, float]:
    """Return the scores of a row's finished runs by seed, without scores that are NaN or infinite."""
    scores = {}
    for run in row['runs']:
        if run['state'] != 'done':
            continue
        score = run.get('scores', {}).get(metric)
        if score is not None and math.isfinite(score):
            scores[run['seed']] = score
    return scores


def shared_epochs(row: Record, base: Record) -> int:
    """Return the number of epochs that two rows share because of a fork; 0 if they share none.

    A fork is a row that continues checkpoints of another row, its trunk. A fork shares the epochs before its checkpoint with
    its trunk, and with other forks from the same epoch of the same trunk.
    """
    one, two = (side.get('fork') or {} for side in (row, base))
    for fork, other in ((one, base), (two, row)):
        if fork.get('of') == other['name']:
            return fork['epoch']
    at = [(fork.get('of'), fork.get('epoch', 0)) for fork in (one, two)]
    return at[0][1] if at[0] == at[1] else 0


def same_start(row: Record, base: Record, seed: int) -> bool:
    """Return True if the two runs of a seed, one in each row, can be compared as a pair.

    The runs can be paired if they share the epochs before a fork, or if they have the same order of images and the same
    initial weights. Initial weights are not compared if their shapes differ.
    """
    if shared_epochs(row, base):
        return True
    one, two = (_start_of(side, seed) for side in (row, base))
    if not one or not two:
        return False
    if one['order'] is None or one['order'] != two['order']:
        return False
    return one['weights'] == two['weights'] or one['shapes'] != two['shapes']


def _start_of(row: Record, seed: int) -> Record | None:
    run = next(run for run in row['runs'] if run['seed'] == seed)
    return run.get('start')
