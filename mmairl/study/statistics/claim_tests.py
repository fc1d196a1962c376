"""Test the claims of a paper with the runs of a study.

Each test returns two one-sided p-values, one for the claim and one against it. A claim consists of one or more parts. For
example, a claim about several scores has one part for each score. A part is a statement about a weighted sum of row means,
such as the difference between two rows. (A row is one configuration of the study, trained with several seeds.)

Seeds are blocks if each seed gives all rows the same order of images and the same initial weights. The weighted sum is then
computed for each seed, and its mean over seeds is tested. Otherwise, the rows are independent samples with different
variances. The test has n - 1 degrees of freedom in both cases, where n is the number of seeds that all rows have or, for
independent samples, the smallest number of runs in a row. With this choice, the error rate does not exceed its nominal level
for any variances (Hájek, 1962).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from mmairl.study.statistics.compare_rows import LEVEL, TIED, holm

SUPPORTED, CONTRADICTED = 'supported', 'contradicted'
INCONCLUSIVE, NOT_RUN = 'inconclusive', 'not run'
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of row means, such as the difference between two rows, or of the coefficients of `parallel_lines`.

    Args:
        estimate: The estimated value of the sum.
        error: The standard error of the estimate; NaN if there are no degrees of freedom or if the scores do not vary.
        freedom: Degrees of freedom of the error.
        seeds: The degrees of freedom plus one, which is the number of seeds of a sum of row means.
    """

    estimate: float
    error: float
    freedom: float
    seeds: int

    def at(self, seeds: int) -> 'Contrast':
        """Return the contrast that is expected with another number of seeds if the estimate and the spread stay the same."""
        return replace(
            self,
            error=self.error * math.sqrt(self.seeds / seeds),
            freedom=self.freedom * (seeds - 1) / (self.seeds - 1),
            seeds=seeds,
        )

    def shifted(self, by: float) -> 'Contrast':
        return replace(self, estimate=self.estimate + by)


@dataclass(frozen=True)
class Evidence:
    """One-sided p-values for and against a claim. If there is no test, both are 1, and `reason` states why."""

    support: float = 1.0
    against: float = 1.0
    reason: str = ''

    @property
    def p(self) -> float:
        """The two-sided p-value: twice the smaller of the one-sided p-values, but at most 1."""
        return min(1.0, 2 * min(self.support, self.against))


def sum_of_means(values: np.ndarray, blocks: bool) -> Contrast:
    """Return the sum of the means of all rows.

    Args:
        values: (rows, seeds) Each score, multiplied by the weight of its row; NaN for a missing run.
        blocks: Whether seeds are blocks, so that the sum is computed for each seed.
    """
    if blocks:
        values = values.sum(0, keepdims=True)
    counts = (~np.isnan(values)).sum(1)
    squares = np.nanvar(values, 1) / np.maximum(counts - 1, 1)
    seeds = int(counts.min())
    return _contrast(np.nanmean(values, 1).sum(), squares.sum(), seeds - 1, seeds)


def _contrast(
    estimate: float,
    square: float,
    freedom: int,
    seeds: int,
) -> Contrast:
    """Return a contrast from its squared standard error. The error is NaN if it cannot be estimated."""
    known = freedom > 0 and square > TIED**2
    return Contrast(float(estimate), math.sqrt(square) if known else math.nan, freedom, seeds)


def above(contrast: Contrast, least: float = 0.0) -> Evidence:
    """Test the claim that a contrast exceeds `least`."""
    statistic = (contrast.estimate - least) / contrast.error
    against = float(scipy.stats.t.cdf(statistic, contrast.freedom))
    return Evidence(1 - against, against)


def within(contrast: Contrast, margin: float) -> Evidence:
    """Test the claim that a contrast is closer to zero than `margin` (two one-sided tests)."""
    statistic = (margin - abs(contrast.estimate)) / contrast.error
    support = float(scipy.stats.t.sf(statistic, contrast.freedom))
    return Evidence(support, min(1.0, 2 * (1 - support)))


def all_hold(parts: Sequence[Evidence]) -> Evidence:
    """Test the claim that all parts hold.

    The claim is supported if every part is supported, and contradicted if any part is contradicted.
    """
    support = max(part.support for part in parts)
    against = min(1.0, len(parts) * min(part.against for part in parts))
    return Evidence(support, against, _reasons(parts))


def most_hold(parts: Sequence[Evidence]) -> Evidence:
    """Test the claim that more than half of the parts hold, by a partial conjunction test (Benjamini and Heller, 2008)."""
    needed = len(parts) // 2 + 1
    failing = len(parts) - needed + 1
    support = _at_least(needed, [part.support for part in parts])
    against = _at_least(failing, [part.against for part in parts])
    return Evidence(support, against, _reasons(parts))


def _at_least(count: int, p: Sequence[float]) -> float:
    return min(1.0, (len(p) - count + 1) * sorted(p)[count - 1])


def _reasons(parts: Sequence[Evidence]) -> str:
    return '; '.join(dict.fromkeys(part.reason for part in parts if part.reason))


def collapse_rate(collapsed: int, runs: int, claimed: bool) -> Evidence:
    """Test a claim about how often the runs of a row collapse, by an exact binomial test against a rate of one half.

    Args:
        collapsed: Number of collapsed runs.
        runs: Number of runs.
        claimed: True if the claim is that most runs collapse, False if it is that most runs do not collapse.
    """
    events = collapsed if claimed else runs - collapsed
    support = float(scipy.stats.binom.sf(events - 1, runs, 0.5))
    return Evidence(support, float(scipy.stats.binom.cdf(events, runs, 0.5)))


def parallel_lines(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
) -> Contrast:
    """Fit parallel lines to groups of models, and return a weighted sum of the fitted coefficients.

    The coefficients are the slope, which all groups share, and one intercept for each group. The intercept is the height of
    the group's line at the mean of `x`.

    Args:
        x: (models,) The score of each model on the x axis.
        y: (models,) The score of each model on the y axis.
        groups: (models,) The index of each model's group.
        weights: (1 + groups,) The weight of the slope, followed by the weight of each intercept.
    """
    columns = np.column_stack([x, *(groups == group for group in np.unique(groups))]).astype(float)
    columns[:, 0] -= x.mean()
    freedom = len(y) - len(weights)
    inverse = np.linalg.pinv(columns.T @ columns)
    coefficients = inverse @ columns.T @ y
    residual = y - columns @ coefficients
    variance = residual @ residual / max(freedom, 1)
    square = variance * (weights @ inverse @ weights)
    return _contrast(weights @ coefficients, square, freedom, freedom + 1)


def family_verdicts(evidence: Sequence[Evidence], level: float = LEVEL) -> list[str]:
    """Return the verdict on each claim of a family.

    Holm's correction limits the chance of one or more false verdicts in the family to `level`.
    """
    adjusted = holm(np.array([one.p for one in evidence]))
    verdicts = []
    for one, p in zip(evidence, adjusted):
        if p >= level:
            verdicts.append(INCONCLUSIVE)
        else:
            verdicts.append(SUPPORTED if one.support < one.against else CONTRADICTED)
    return verdicts
