"""Tests of claims on the runs of a study: two one-sided p-values each, one for the claim and one against it.

A claim consists of parts, such as one difference for each of several scores. A part concerns a weighted sum of the means of
rows. If seeds are blocks, the sum is formed seed by seed. Otherwise rows are independent samples, each with its own spread,
with one degree of freedom fewer than the seeds of the row with fewest (Hájek, 1962), which keeps the level for any spreads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

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
        seeds: Runs of the row with fewest.
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


def row_contrast(values: np.ndarray, weights: Sequence[float], blocks: bool) -> Contrast:
    """Return the contrast of rows.

    Args:
        values: (rows, seeds), NaN for a missing run.
        weights: Weight of each row's mean.
        blocks: Whether a seed means the same in all rows.
    """
    weights = np.asarray(weights, float)
    if blocks:
        values, weights = (weights @ values)[None], np.ones(1)
    counts = (~np.isnan(values)).sum(1)
    means = np.nanmean(values, 1)
    squares = np.nansum((values - means[:, None]) ** 2, 1) / np.maximum(counts - 1, 1) / counts
    fewest = int(counts.min())
    error = math.sqrt(float(weights**2 @ squares))
    known = fewest > 1 and error > TIED
    return Contrast(float(weights @ means), error if known else math.nan, fewest - 1, fewest)


def above(contrast: Contrast, least: float = 0.0) -> Evidence:
    """Test the claim that a contrast exceeds `least`."""
    statistic = (contrast.estimate - least) / contrast.error
    against = float(stats.t.cdf(statistic, contrast.freedom))
    return Evidence(1 - against, against)


def within(contrast: Contrast, margin: float) -> Evidence:
    """Test the claim that a contrast is closer to zero than `margin` (two one-sided tests)."""
    statistic = (margin - abs(contrast.estimate)) / contrast.error
    support = float(stats.t.sf(statistic, contrast.freedom))
    return Evidence(support, min(1.0, 2 * (1 - support)))


def all_hold(parts: Sequence[Evidence]) -> Evidence:
    """Test the claim that all parts hold: every part must be supported, or any one contradicted."""
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
    support = float(stats.binom.sf(events - 1, runs, 0.5))
    return Evidence(support, float(stats.binom.cdf(events, runs, 0.5)))


def common_slope(x: np.ndarray, y: np.ndarray, groups: np.ndarray) -> Contrast:
    """Return the slope of y on x, common to all groups, each with its own intercept.

    Args:
        x: (models,) Score on the x axis.
        y: (models,) Score on the y axis.
        groups: (models,) Index of each model's group.
    """
    return _regression(x, y, groups, 'slope')


def intercept_difference(
    x: np.ndarray, y: np.ndarray, groups: np.ndarray, higher: int, lower: int
) -> Contrast:
    """Return how far one group's line lies above another's at equal x."""
    return _regression(x, y, groups, (higher, lower))


def _regression(x: np.ndarray, y: np.ndarray, groups: np.ndarray, asked: object) -> Contrast:
    labels = np.unique(groups)
    columns = np.column_stack([x - x.mean(), *(groups == label for label in labels)]).astype(float)
    weights = np.zeros(columns.shape[1])
    if asked == 'slope':
        weights[0] = 1
    else:
        weights[1 + labels.searchsorted(asked[0])] = 1
        weights[1 + labels.searchsorted(asked[1])] = -1
    freedom = len(y) - columns.shape[1]
    inverse = np.linalg.pinv(columns.T @ columns)
    coefficients = inverse @ columns.T @ y
    residual = y - columns @ coefficients
    variance = residual @ residual / max(freedom, 1)
    error = math.sqrt(float(variance * (weights @ inverse @ weights)))
    known = freedom > 0 and error > TIED
    return Contrast(
        float(weights @ coefficients), error if known else math.nan, freedom, int(freedom + 1)
    )


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
