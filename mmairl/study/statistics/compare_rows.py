"""Compare each row of a study with the row that it builds on: an estimate, an interval and a verdict.

If a seed means the same in both rows (equal initial weights and order of images, as the runs recorded them), seeds are blocks
and the differences seed by seed are tested. Otherwise the rows are independent samples with different variances. Both tests are
t-tests with n - 1 degrees of freedom, where n is the smaller number of seeds. For normal scores, this keeps the level for any
two variances (Mickey and Brown, 1966). Welch's test does not keep it with two or three seeds or with unequal numbers of runs.

A collapsed run is not a sample from the distribution of runs that learned, so means exclude collapsed runs. If a run of either
row collapsed, the means have no verdict, and Fisher's exact test compares how many runs collapsed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np
import scipy  # imports `scipy.stats` on first use; plans do without it

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

LEVEL = 0.05  # the chance of one or more false differences among the comparisons of one score
MARGIN = 1.0  # points; smaller differences are equivalent, unless the study declares another margin
TIED = 1e-9  # points; runs with a smaller spread differ by rounding only
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]  # estimate, standard error, degrees of freedom
Record = Mapping[str, Any]  # study.json, or a row or run of it


@dataclass(frozen=True)
class Comparison:
    """The difference of a row to its base row in one score. Unknown values are None; `verdict` gives the reason.

    Args:
        row: Name of the row.
        on: Name of its base row.
        metric: Key of the score.
        margin: Differences below it are equivalent.
        seeds: The smaller number of seeds, or the number of shared seeds if seeds are blocks.
        blocks: Whether differences are tested seed by seed.
        verdict: The decision, or the reason why there is none.
        estimate: Difference of the means.
        low: Lower end of the 95 % interval of this comparison alone.
        high: Upper end.
        improvement: Probability that a run of the row is better than one of its base row, with its 95 % interval.
        error: Standard error of the estimate.
        freedom: Degrees of freedom.
        deviation: Standard deviation of a seed's difference, or of the difference of two runs.
        collapsed: Collapsed runs of the row and of its base row.
        share: p-value of the exact test of these numbers, if any run collapsed.
        spread: The estimate seed by seed, or run by run if seeds are not blocks.
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
    """Return mean difference, standard error and n - 1 degrees of freedom of shared seeds.

    The last axis holds the seeds, the same in both arrays; NaN is a missing run.
    """
    count, estimate, square = _moments(one - two)
    return estimate, known_error(square), count - 1.0


def unpaired(one: np.ndarray, two: np.ndarray) -> Numbers:
    """Return the same for two independent sets of seeds, each with its own spread.

    error = sqrt(s1^2 / n + s2^2 / m), with min(n, m) - 1 degrees of freedom.
    """
    n, mean_one, square_one = _moments(one)
    m, mean_two, square_two = _moments(two)
    error = known_error(square_one + square_two)
    return mean_one - mean_two, error, np.minimum(n, m) - 1.0


def _moments(values: np.ndarray) -> Numbers:
    """Return count, mean and squared standard error of the mean over the last axis; NaN if there are too few values."""
    count = np.sum(~np.isnan(values), -1)
    with np.errstate(invalid='ignore', divide='ignore'):
        center = np.nansum(values, -1) / count
        squares = np.nansum((values - center[..., None]) ** 2, -1)
        return count, center, squares / (count - 1) / count


def known_error(square: np.ndarray) -> np.ndarray:
    """Return the root of a squared standard error; NaN if the runs differ by rounding only."""
    return np.where(square > TIED**2, np.sqrt(square), math.nan)


def collapse_limit(scores: np.ndarray, null: float | None = None) -> np.ndarray:
    """Return for each row the score below which a run has collapsed.

    If the study has untrained rows, a run has collapsed if its gain over their best score is less than a quarter of the gain
    of the median run. Otherwise, it has collapsed if its score is less than two fifths of the best score of its row.

    Args:
        scores: (..., rows, seeds), NaN for a missing run.
        null: The best score of an untrained row.
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
    """Return the numbers of the runs that learned, and the p-value of the exact test (NaN without collapsed runs)."""
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
    """Return Fisher's p-value for `some` of `runs` against `others` of `other_runs`."""
    table = [[some, runs - some], [others, other_runs - others]]
    return float(scipy.stats.fisher_exact(table).pvalue)


def holm(p: np.ndarray) -> np.ndarray:
    """Return the p-values of a family (the last axis) adjusted by Holm.

    The smallest is multiplied by m, the next by m - 1, and so on; adjusted values never decrease.
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
    """Return the decision on each comparison of a family (the last axis).

    Comparisons without a standard error (NaN) are undecided but still count for the correction.

    Args:
        estimate: Differences.
        error: Standard errors.
        freedom: Degrees of freedom.
        margin: Differences below it are equivalent.
        level: Level of the family.
        known: Decisions of an earlier analysis. They are final: the p-value of that test is 0, that of the other test 1.
        share: p-values of the exact test. They replace the p-values of the difference and exclude equivalence.
    """
    by_counts = ~np.isnan(share)
    p_equal = 2 * scipy.stats.t.sf(abs(estimate) / error, freedom)
    p_apart = scipy.stats.t.sf((margin - abs(estimate)) / error, freedom)  # the larger of two tests
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
    """Return every declared comparison of a study's record by one score, tested as one family.

    Args:
        study: The record of the study.
        metric: Key of the score.
        margin: Differences below it are equivalent.
        level: Level of the family and of each interval.
        known: Decisions of an earlier analysis.
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
    *numbers, share = np.array(columns, float)  # None becomes NaN
    decisions = verdicts(*numbers, margin, level, None if known is None else np.array(known), share)
    return [with_verdict(one, str(decision)) for one, decision in zip(compared, decisions)]


def with_verdict(comparison: Comparison, decision: str) -> Comparison:
    """Return the comparison with the decision of its family, unless it has a reason for no verdict."""
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
    """Return a comparison without the decision of its family. If no decision is possible, `verdict` has the reason.

    Args:
        row: The row.
        base: Its base row.
        metric: Key of the score.
        margin: Differences below it are equivalent.
        limits: The score below which a run of a row has collapsed, by name.
        level: Level of the interval.
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
    """Return the differences seed by seed, or run by run to the base's mean, and their standard deviation."""
    if blocks:
        differences = one - two
        deviation = np.nanstd(differences, ddof=1)
    else:
        differences = one - np.nanmean(two)
        deviation = math.hypot(np.nanstd(one, ddof=1), np.nanstd(two, ddof=1))
    return tuple(differences[~np.isnan(differences)].tolist()), float(deviation)


def limits_by_row(study: Record, metric: str) -> dict[str, float]:
    """Return the score below which a run of each trained row has collapsed; empty for scores that are not accuracies."""
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
    """Return the probability that a run of the first row is better than one of the second, with its 95 % interval.

    The probability is that of Mann and Whitney, as in rliable. The interval is Newcombe's (2006, method 5), whose width is
    not zero if all runs are better. The quantile is that of a t distribution with 2 (n - 1) degrees of freedom, where n is
    the smaller number of runs: with the normal quantile, the interval covers only 90 % for two equal rows of 3 runs.
    """
    higher = np.sign(np.subtract.outer(one, two))
    share = float(higher.mean() / 2 + 0.5)
    runs = (len(one) + len(two)) / 2 - 1
    quantile = scipy.stats.t.ppf(0.975, 2 * max(1, min(len(one), len(two)) - 1))

    def beyond(at: float) -> float:
        """Return (share - at)^2 - t^2 var(at); it is zero at the ends of the interval."""
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
    """Return estimate ± t(1 - level / 2, freedom) * error; the ends are None if the error is unknown (NaN)."""
    if math.isnan(error):
        return dict(estimate=estimate, low=None, high=None)
    half = float(scipy.stats.t.ppf(1 - level / 2, freedom)) * error
    return dict(estimate=estimate, low=estimate - half, high=estimate + half)


def mean_intervals(study: Record, metric: str) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each row's mean by one score, for rows with two seeds or more."""
    intervals = {}
    for row in study['rows']:
        scores = np.array(list(scores_by_seed(row, metric).values()))
        count, center, square = _moments(scores)
        if count > 1:
            ends = interval(center, math.sqrt(square), count - 1)
            intervals[row['name']] = (float(ends['low']), float(ends['high']))
    return intervals


def scores_by_seed(row: Record, metric: str) -> dict[int, float]:
    """Return the finite scores of the finished runs."""
    scores = {}
    for run in row['runs']:
        if run['state'] != 'done':
            continue
        score = run.get('scores', {}).get(metric)
        if score is not None and math.isfinite(score):
            scores[run['seed']] = score
    return scores


def shared_epochs(row: Record, base: Record) -> int:
    """Return how many epochs a fork shares with its trunk, or two forks of one trunk with each other; 0 for other rows."""
    one, two = (side.get('fork') or {} for side in (row, base))
    for fork, other in ((one, base), (two, row)):
        if fork.get('of') == other['name']:
            return fork['epoch']
    at = [(fork.get('of'), fork.get('epoch', 0)) for fork in (one, two)]
    return at[0][1] if at[0] == at[1] else 0


def same_start(row: Record, base: Record, seed: int) -> bool:
    """Return True if a seed means the same in two rows.

    Their runs share the epochs before a fork, or the data order and (where shapes match) the initial weights.
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
