"""The benefit of NormRescale in tuning trials: how many trials make an original network as good as its rescaled copy.

Trials are chosen by one half of the held-out images and reported by the other: scores that chose a trial are optimistic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmairl.study.statistics.compare_rows import interval, paired
from mmairl.study.statistics.tuning import best_of

Halves = Sequence[Sequence[float]]  # by trial, the scores of two halves of the held-out images


@dataclass(frozen=True)
class TrialBenefit:
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


def trial_benefit(tuned: Sequence[Halves], untuned: Sequence[Sequence[float]]) -> TrialBenefit:
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
    return TrialBenefit(
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
