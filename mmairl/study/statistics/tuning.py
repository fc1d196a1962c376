"""The worth of tuning: how good the best of n trials is, and how much a user may miss.

A search is the unit: it is repeated with other points and other seeds, so that the spread over searches holds the luck of both.
Scores are those of the criterion, by which trials were chosen, so the best looks better than it is; `worth` therefore chooses
by one half of the images and reports by the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from mmairl.study.statistics.compare_rows import interval, paired

Halves = Sequence[Sequence[float]]  # by trial, the scores of two halves of the held-out images


def best_of(published: float, others: Sequence[float], reported: Sequence[float] | None = None) -> np.ndarray:
    """Return the expected best of 1, 2, ... trials: the published value first, then others drawn without replacement.

    With `reported`, the scores of all of them on other images, it is the expected one of these of the trial that is chosen.
    """
    scores, count = np.asarray([published, *others], float), len(others)
    told = scores if reported is None else np.asarray(reported, float)
    ascending = 1 + np.argsort(scores[1:], kind='stable')
    chosen = np.where(scores[ascending] > scores[0], told[ascending], told[0])
    expected = [float(told[0])]
    for drawn in range(1, count + 1):
        # The k-th smallest is the best of those drawn if the rest of them are among the k below it.
        ways = np.array([comb(below, drawn - 1) for below in range(count)]) / comb(count, drawn)
        expected.append(float(chosen @ ways))
    return np.array(expected)


@dataclass(frozen=True)
class Worth:
    """After how many tuned trials one network is as good as another untuned; None is more than were tried."""

    trials: int | None
    low: int | None  # the ends of the 95 % interval
    high: int | None
    most: int  # trials that were tried, beside the recipe's own
    curve: tuple[float, ...]  # the tuned network after 0, 1, ... trials
    target: float  # the other network, untuned


def worth(tuned: Sequence[Halves], untuned: Sequence[Sequence[float]]) -> Worth:
    """Return how many trials beside the recipe's own `tuned` wants to be as good as `untuned` at the recipe's.

    Both have an entry for each seed, in which the halves of held-out images have a score: of each trial, the recipe's
    own first, and of the one run. One half chooses and the other reports, both ways. Seeds, which search at places of their
    own, are the unit of the interval: it has all numbers of trials at which the paired t-test can tell nothing.
    """
    trials, target = np.array(tuned, float), np.array(untuned, float).mean(1)  # (S, T, 2), (S,)
    halves = ((0, 1), (1, 0))
    curves = np.array([[best_of(one[0, a], one[1:, a], one[:, b]) for a, b in halves] for one in trials]).mean(1).T
    reached = []
    for estimate, error, freedom in zip(*paired(curves, target)):
        _, low, high = interval(float(estimate), float(error), float(freedom)).values()
        reached.append((estimate >= 0, high is None or high >= 0, low is not None and low >= 0))
    first = (told.index(True) if True in told else None for told in zip(*reached))
    return Worth(*first, len(curves) - 1, tuple(curves.mean(1)), float(target.mean()))


def curve(searches: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return mean and interval over searches of the expected best, for each number of trials that all searches have."""
    length = min(map(len, searches))
    scores = np.array([search[:length] for search in searches])
    if len(scores) < 2:
        return [dict(estimate=float(value)) for value in scores[0]]
    error = scores.std(0, ddof=1) / np.sqrt(len(scores))
    return [interval(float(m), float(e), len(scores) - 1) for m, e in zip(scores.mean(0), error)]


def forgiving(scores: Sequence[float], within: float) -> float:
    """Return the share of trials, which cover the space evenly, that come within so many points of the best."""
    scores = np.asarray(scores, float)
    return float(np.mean(scores >= scores.max() - within))
