"""The benefit of tuning: how good the best of n trials is, and how many trials come close to it.

Searches are the unit: they are repeated with other points and other seeds, so the spread over searches contains the luck of
both. Scores are those of the criterion that chose the trials, so the best is optimistic. `worth` therefore chooses by one half
of the images and reports by the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from mmairl.study.statistics.compare_rows import interval, paired

Halves = Sequence[Sequence[float]]  # by trial, the scores of two halves of the held-out images


def best_of(
    published: float, others: Sequence[float], reported: Sequence[float] | None = None
) -> np.ndarray:
    """Return the expected best of 1, 2, ... trials: the published value first, then others drawn without replacement.

    The k-th smallest of n others is the best of d drawn ones with probability C(k - 1, d - 1) / C(n, d).

    Args:
        published: Score of the published values.
        others: Scores of the other trials.
        reported: Scores of all trials on other images. With them, returns the expected one of the trial that is chosen.
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


@dataclass(frozen=True)
class Worth:
    """After how many trials a tuned network is as good as another untuned one; None is more than were tried.

    Args:
        trials: The number of trials.
        low: Lower end of its 95 % interval.
        high: Upper end.
        most: Trials that were tried in addition to the recipe's own.
        curve: Scores of the tuned network after 0, 1, ... trials.
        target: Score of the other network, untuned.
    """

    trials: int | None
    low: int | None
    high: int | None
    most: int
    curve: tuple[float, ...]
    target: float


def worth(tuned: Sequence[Halves], untuned: Sequence[Sequence[float]]) -> Worth:
    """Return how many trials `tuned` requires in addition to the recipe's own to be as good as `untuned` at the recipe's.

    One half of the held-out images chooses and the other reports, both ways. Seeds, which search at their own points, are the
    unit of the interval: it has all numbers of trials at which the paired t-test finds no difference.

    Args:
        tuned: By seed and trial, the recipe's own first, the scores of two halves of the images.
        untuned: By seed, the same of the one run.
    """
    trials = np.array(tuned, float)  # (seeds, trials, 2)
    target = np.array(untuned, float).mean(1)  # (seeds,)
    curves = np.array([_mean_curve(of_seed) for of_seed in trials]).T
    reached = []
    low_reached = []
    high_reached = []
    for numbers in zip(*paired(curves, target)):
        estimate, low, high = interval(*map(float, numbers)).values()
        reached.append(estimate >= 0)
        low_reached.append(high is None or high >= 0)
        high_reached.append(low is not None and low >= 0)
    return Worth(
        trials=_first(reached),
        low=_first(low_reached),
        high=_first(high_reached),
        most=len(curves) - 1,
        curve=tuple(curves.mean(1)),
        target=float(target.mean()),
    )


def _mean_curve(trials: np.ndarray) -> np.ndarray:
    """Return the mean over both halves of the expected score of the trial that the other half chooses."""
    curves = []
    for choosing, reporting in ((0, 1), (1, 0)):
        scores = trials[:, choosing]
        curves.append(best_of(scores[0], scores[1:], trials[:, reporting]))
    return np.mean(curves, axis=0)


def _first(reached: Sequence[bool]) -> int | None:
    return reached.index(True) if True in reached else None


def curve(searches: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return mean and 95 % interval of the expected best over searches, for each number of trials that all have."""
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
    """Return the fraction of trials, which cover the space evenly, within so many points of the best."""
    scores = np.asarray(scores, float)
    return float(np.mean(scores >= scores.max() - points))
