"""The worth of tuning: how good the best of n trials is, which row is ahead at which budget, and how much a user may miss.

A search is the unit: it is repeated with other points and other seeds, so that the spread over searches holds the luck of both.
Scores are those of the criterion, by which trials were chosen, so the best looks better than it is.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from mmairl.study.numbers.statistics import interval, paired


def best_of(published: float, others: Sequence[float]) -> np.ndarray:
    """Return the expected best of 1, 2, ... trials: the published value first, then others drawn without replacement."""
    ascending, count = np.sort(np.asarray(others, float)), len(others)
    expected = [float(published)]
    for drawn in range(1, count + 1):
        # The k-th smallest is the best of those drawn if the rest of them are among the k below it.
        ways = np.array([comb(below, drawn - 1) for below in range(count)]) / comb(count, drawn)
        expected.append(float(np.maximum(ascending, published) @ ways))
    return np.array(expected)


def curve(searches: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return mean and interval over searches of the expected best, for each number of trials that all searches have."""
    length = min(map(len, searches))
    scores = np.array([search[:length] for search in searches])
    if len(scores) < 2:
        return [dict(estimate=float(value)) for value in scores[0]]
    error = scores.std(0, ddof=1) / np.sqrt(len(scores))
    return [interval(float(m), float(e), len(scores) - 1) for m, e in zip(scores.mean(0), error)]


def ahead_from(one: Sequence[np.ndarray], two: Sequence[np.ndarray], level: float) -> int | None:
    """Return the number of trials from which row `one` is ahead of row `two` by all larger numbers too, or None.

    The searches are blocks; each number of trials is tested at `level`.
    """
    length = min(map(len, [*one, *two]))
    if min(len(one), len(two)) < 2:
        return None
    one, two = (np.array([search[:length] for search in searches]).T for searches in (one, two))
    estimate, error, freedom = paired(one, two)
    low = [
        interval(*map(float, of), level)['low'] if of[1] > 0 else float('nan') for of in zip(estimate, error, freedom)
    ]
    behind = [place for place, end in enumerate(low) if not end > 0]
    first = behind[-1] + 1 if behind else 0
    return None if first == length else first + 1


def forgiving(scores: Sequence[float], within: float) -> float:
    """Return the share of trials, which cover the space evenly, that come within so many points of the best."""
    scores = np.asarray(scores, float)
    return float(np.mean(scores >= scores.max() - within))
