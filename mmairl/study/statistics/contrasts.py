"""Estimate and decide weighted sums of row means: differences, effects of factors, and claims.

A row of a study is one configuration, trained with several seeds. Rows are paired if the runs of a seed have the same
initial weights and the same order of images in all rows. The weighted sum is then computed for each seed, and its mean over
the seeds is tested. Otherwise, the rows are independent samples with different variances. Both t-tests have n - 1 degrees of
freedom, where n is the number of seeds that all rows have or, for independent samples, the smallest number of runs in a row.
If scores are normally distributed, the error rate of these tests does not exceed its nominal level for any variances (Mickey
and Brown, 1966; Hájek, 1962). The error rate of Welch's test exceeds this level with two or three seeds.

A collapsed run has constant or nearly constant features, so it is not a sample from the distribution of its row. Means
exclude it. If a run collapsed, the means are not tested. Instead, Fisher's exact test compares how many runs collapsed.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

# scipy imports `scipy.stats` on first use, so commands that only print a plan do not wait for this import.
import scipy

# The limit on the chance of one or more false differences in a family, and of one or more false equivalences.
LEVEL = 0.05
POWER = 0.8
# A standard error below this number is due to rounding, so it counts as unknown.
ROUNDING = 1e-9

HIGHER, LOWER, EQUIVALENT = 'higher', 'lower', 'equivalent'
INCONCLUSIVE = 'inconclusive'
MORE_COLLAPSES = 'differs in how many runs collapse'
COLLAPSED = 'not tested (collapsed runs)'
ONE_SEED = 'not tested (one seed)'
NO_SPREAD = 'not tested (no spread)'
NOT_MEASURED = 'not measured'

# The score of each finished run, by row and seed.
Scores = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True)
class Effect:
    """A weighted sum of row means, such as the difference between a row and its base row.

    Args:
        name: The row, factor or claim.
        base: The base row of a difference.
        estimate: The sum; None if a row has no score or a run collapsed.
        error: The standard error of the estimate; None if it is unknown.
        freedom: Degrees of freedom of the error.
        low: Lower end of the interval, which is not corrected for the number of effects in the family.
        high: Upper end of the interval.
        paired: Whether the rows are paired by seed.
        by_seed: The sum for each seed. For independent samples: the sum for each run of the first row, with the means of the
            other rows.
        collapsed: Number of collapsed runs in the row and in its base row.
        collapse_p: p-value of Fisher's exact test of these numbers; None if no run collapsed.
        margin: Smaller effects are equivalent to no effect; None if no margin is known.
        verdict: The decision, or the reason why the effect is not tested.
    """

    name: str = ''
    base: str = ''
    estimate: float | None = None
    error: float | None = None
    freedom: float = 0.0
    low: float | None = None
    high: float | None = None
    paired: bool = False
    by_seed: Sequence[float] = ()
    collapsed: tuple[int, int] = (0, 0)
    collapse_p: float | None = None
    margin: float | None = None
    verdict: str = ''

    @property
    def tested(self) -> bool:
        """Whether the mean is tested: no run collapsed, and the standard error is known."""
        return self.error is not None

    def p_above(self, least: float = 0.0) -> float:
        """Return the one-sided p-value for the statement that the sum exceeds `least`; 1 if the sum is not tested."""
        if not self.tested:
            return 1.0
        return float(scipy.special.stdtr(self.freedom, (least - self.estimate) / self.error))

    def p_below(self, most: float = 0.0) -> float:
        """Return the one-sided p-value for the statement that the sum is below `most`; 1 if the sum is not tested."""
        if not self.tested:
            return 1.0
        return float(scipy.special.stdtr(self.freedom, (self.estimate - most) / self.error))

    def p_differs(self) -> float:
        """Return the two-sided p-value for a difference from 0, or the p-value of the exact test if a run collapsed."""
        if self.collapse_p is not None:
            return self.collapse_p
        return min(1.0, 2 * min(self.p_above(), self.p_below()))

    def p_within(self, margin: float | None) -> float:
        """Return the p-value for the statement that the sum is closer to 0 than the margin (two one-sided tests)."""
        return 1.0 if margin is None else max(self.p_above(-margin), self.p_below(margin))


def contrast(
    weights: Mapping[str, float],
    scores: Scores,
    paired: bool,
    collapsed: Mapping[str, Collection[int]] | None = None,
    level: float = LEVEL,
) -> Effect:
    """Return a weighted sum of row means with its error and interval, without a decision (see `decide`).

    Args:
        weights: The weight of each row. The difference between two rows has the weights 1 and -1.
        scores: The score of each finished run, by row and seed.
        paired: Whether the rows are paired by seed.
        collapsed: The seeds of the collapsed runs, by row. Only a difference between two rows can have any.
        level: The interval covers 1 - level.

    Example:
        >>> rows = {'a': {0: 72.1, 1: 72.5, 2: 71.9}, 'b': {0: 70.0, 1: 70.6, 2: 70.1}}
        >>> effect = contrast({'a': 1, 'b': -1}, rows, paired=True)
        >>> round(effect.estimate, 2), round(effect.p_differs(), 4)
        (1.93, 0.0021)
    """
    table = []
    for row in weights:
        runs = set(scores.get(row, ()))
        fallen = len(runs & set((collapsed or {}).get(row, ())))
        table.append((fallen, len(runs) - fallen))
    counts = tuple(fallen for fallen, _ in table)
    if any(counts):
        p = float(scipy.stats.fisher_exact(table).pvalue)
        return Effect(paired=paired, collapsed=counts, collapse_p=p, verdict=COLLAPSED)
    samples = _weighted_samples(weights, scores, paired)
    count = min(map(len, samples))
    if not count:
        return Effect(paired=paired, verdict=NOT_MEASURED)
    first, *others = samples
    shift = sum(map(fmean, others))
    effect = Effect(
        paired=paired,
        estimate=fmean(first) + shift,
        by_seed=tuple(value + shift for value in first),
        freedom=count - 1.0,
    )
    if count == 1:
        return replace(effect, verdict=ONE_SEED)
    square = sum(variance(sample, fmean(sample)) / len(sample) for sample in samples)
    return with_error(effect, math.sqrt(square), level)


def with_error(effect: Effect, error: float, level: float = LEVEL) -> Effect:
    """Return the effect with its standard error and interval, or with the reason why it is not tested."""
    if error < ROUNDING:
        return replace(effect, verdict=NO_SPREAD)
    half = float(scipy.special.stdtrit(effect.freedom, 1 - level / 2)) * error
    ends = dict(low=effect.estimate - half, high=effect.estimate + half)
    return replace(effect, error=error, **ends)


def _weighted_samples(
    weights: Mapping[str, float], scores: Scores, paired: bool
) -> list[list[float]]:
    """Return one sample of weighted scores for each row, or the sample of their sums by seed if the rows are paired."""
    if not paired:
        return [[w * score for score in scores.get(row, {}).values()] for row, w in weights.items()]
    seeds = set.intersection(*(set(scores.get(row, ())) for row in weights))
    return [[sum(w * scores[row][seed] for row, w in weights.items()) for seed in sorted(seeds)]]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of a family after Holm's correction.

    The smallest of m p-values is multiplied by m, the next one by m - 1, and so on. Each adjusted p-value is at least as
    large as the previous one, and at most 1.
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, p_values[place] * (len(p_values) - rank))
        adjusted[place] = min(1.0, largest)
    return adjusted


def decide(effects: Iterable[Effect], margin: float | None, level: float = LEVEL) -> list[Effect]:
    """Return the effects of a family with their verdicts.

    Holm's correction limits the chance of one or more false differences in the family to `level`, and also the chance of one
    or more false equivalences. An effect that is not tested counts toward the size of the family.

    Args:
        effects: The effects, which are tested as one family.
        margin: Smaller effects are equivalent to no effect. If None, no effect is tested for equivalence.
        level: The error rate of the family.
    """
    effects = [replace(effect, margin=margin) for effect in effects]
    differ = holm([effect.p_differs() for effect in effects])
    near = holm([effect.p_within(margin) for effect in effects])
    return [
        replace(effect, verdict=_verdict(effect, p < level, q < level))
        for effect, p, q in zip(effects, differ, near)
    ]


def _verdict(effect: Effect, differs: bool, equivalent: bool) -> str:
    if differs and effect.collapse_p is not None:
        return MORE_COLLAPSES
    if effect.verdict:
        return effect.verdict
    if differs:
        return LOWER if effect.estimate < 0 else HIGHER
    return EQUIVALENT if equivalent else INCONCLUSIVE


def seeds_needed(effect: Effect, family: int) -> int | None:
    """Return about how many seeds detect an effect as large as its estimate or its margin, whichever is larger.

    The probability to detect it is then about POWER. The spread between the finished runs is itself only an estimate. If it is
    unknown, return None.

    Args:
        effect: The effect.
        family: The number of effects that are corrected together.
    """
    size = max(abs(effect.estimate or 0.0), effect.margin or 0.0)
    if not (effect.tested and size):
        return None
    quantiles = scipy.special.stdtrit(effect.freedom, [1 - LEVEL / 2 / family, POWER])
    return math.ceil(len(effect.by_seed) * (quantiles.sum() * effect.error / size) ** 2)
