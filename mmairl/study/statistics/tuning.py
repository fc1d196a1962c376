"""The benefit of tuning: the score of the best of n trials, and the fraction of trials that come close to it.

The unit is a search: searches are repeated with other points and other seeds, so the spread over searches includes both
sources of luck. The scores are those of the criterion that chose the trials, so the best score is optimistic.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from mmairl.study.statistics.compare_rows import interval


def best_of(
    published: float, others: Sequence[float], reported: Sequence[float] | None = None
) -> np.ndarray:
    """Return the expected best of 1, 2, ... trials, the first of which has the published values, the others in random order.

    The k-th smallest of n scores is the largest of d scores drawn without replacement with probability
    C(k - 1, d - 1) / C(n, d).

    Args:
        published: Score of the published values.
        others: Scores of the other trials.
        reported: Scores of all trials on other images. If given, return the expected value of this score of the best trial.
    """
    scores = np.asarray([published, *others], float)
    values = scores if reported is None else np.asarray(reported, float)
    count = len(others)
    ascending = 1 + np.argsort(scores[1:], kind='stable')
    improves = scores[ascending] > scores[0]
    chosen = np.where(improves, values[ascending], values[0])
    expected = [float(values[0])]
    for drawn in range(1, count + 1):
        ways = np.array([comb(below, drawn - 1) for below in range(count)])
        expected.append(float(chosen @ (ways / comb(count, drawn))))
    return np.array(expected)


def curve(searches: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return mean and 95 % interval over searches of the expected best, for each number of trials that all searches have."""
    length = min(map(len, searches))
    scores = np.array([search[:length] for search in searches])
    means = scores.mean(0)
    if len(scores) < 2:
        return [dict(estimate=float(value)) for value in means]
    errors = scores.std(0, ddof=1) / np.sqrt(len(scores))
    return [
        interval(float(value), float(error), len(scores) - 1) for value, error in zip(means, errors)
    ]


def fraction_within(scores: Sequence[float], points: float) -> float:
    """Return the fraction of trials within this many points of the best. Trials cover the space evenly."""
    scores = np.asarray(scores, float)
    return float(np.mean(scores >= scores.max() - points))
