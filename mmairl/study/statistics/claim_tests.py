"""Tests of claims on the runs of a study. Each has two one-sided p-values, one for the claim and one against it.

A claim consists of parts, such as one difference for each of several scores. A part is about a weighted sum of the means of
rows. If seeds are blocks, the sum is formed seed by seed. Otherwise rows are independent samples with different variances. The
test then has n - 1 degrees of freedom, where n is the smallest number of seeds, which keeps the level for any variances
(Hájek, 1962).
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
    """A weighted sum of row means.

    Args:
        estimate: Its value in points.
        error: Its standard error; NaN with one seed or without any spread.
        freedom: Degrees of freedom of the error.
        seeds: The smallest number of runs of a row.
    """

    estimate: float
    error: float
    freedom: float
    seeds: int

    def at(self, seeds: int) -> 'Contrast':
        """Return the contrast as expected with another number of seeds and the same estimate and spread."""
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
    """One-sided p-values for and against a claim, or the reason why there are none."""

    support: float = 1.0
    against: float = 1.0
    reason: str = ''

    @property
    def p(self) -> float:
        """The two-sided p-value."""
        return min(1.0, 2 * min(self.support, self.against))


def sum_of_means(values: np.ndarray, blocks: bool) -> Contrast:
    """Return the sum of the means of rows.

    Args:
        values: (rows, seeds), each score times its weight; NaN for a missing run.
        blocks: Whether a seed means the same in all rows.
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
    """Return a contrast from the square of its error, which is unknown without degrees of freedom or spread."""
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
    """Test the claim that all parts hold. It is supported if every part is, and contradicted if any part is."""
    support = max(part.support for part in parts)
    against = min(1.0, len(parts) * min(part.against for part in parts))
    return Evidence(support, against, _reasons(parts))


def most_hold(parts: Sequence[Evidence]) -> Evidence:
    """Test the claim that more than half of the parts hold (partial conjunction, Benjamini and Heller, 2008)."""
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
    """Test the claim that most runs of a row collapse, or that most do not (exact binomial test against a half)."""
    events = collapsed if claimed else runs - collapsed
    support = float(scipy.stats.binom.sf(events - 1, runs, 0.5))
    return Evidence(support, float(scipy.stats.binom.cdf(events, runs, 0.5)))


def parallel_lines(
    x: np.ndarray,
    y: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
) -> Contrast:
    """Return a weighted sum of the coefficients of lines with one slope, and one intercept for each group.

    Args:
        x: (models,) Score on the x axis.
        y: (models,) Score on the y axis.
        groups: (models,) Number of each model's group.
        weights: (1 + groups,) Weight of the slope, and of each intercept.
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
    """Return the verdict on each claim of a family; the chance of one or more false verdicts is at most `level`."""
    adjusted = holm(np.array([one.p for one in evidence]))
    verdicts = []
    for one, p in zip(evidence, adjusted):
        if p >= level:
            verdicts.append(INCONCLUSIVE)
        else:
            verdicts.append(SUPPORTED if one.support < one.against else CONTRADICTED)
    return verdicts
