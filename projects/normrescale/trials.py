"""Compute how many tuning trials make an original network as good as its rescaled copy.

Trials are chosen on one half of the held-out images and reported on the other half, because the score that selects a trial
is optimistic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmairl.study.statistics.compare_rows import interval, paired
from mmairl.study.statistics.tuning import best_of

# For each trial, the scores on two halves of the held-out images.
Halves = Sequence[Sequence[float]]


@dataclass(frozen=True)
class TrialBenefit:
    """The number of trials after which a tuned network is as good as another network without tuning.

    None means more trials than were run.

    Args:
        trials: The number of trials.
        low: Lower end of its 95 % interval.
        high: Upper end of this interval.
        most: The number of trials that were run in addition to the recipe's rate.
        curve: Scores of the tuned network after 0, 1, ... trials.
        target: Score of the other network without tuning.
    """

    trials: int | None
    low: int | None
    high: int | None
    most: int
    curve: tuple[float, ...]
    target: float


def trial_benefit(tuned: Sequence[Halves], untuned: Sequence[Sequence[float]]) -> TrialBenefit:
    """Return how many trials, in addition to the recipe's rate, make `tuned` as good as `untuned` at the recipe's rate.

    One half of the held-out images selects the best trial and the other half scores it, and vice versa. The interval
    contains all numbers of trials at which a paired t-test over seeds finds no difference. Each seed tries its own rates.

    Args:
        tuned: For each seed and trial, the scores on two halves of the images. The first trial has the recipe's rate.
        untuned: For each seed, the scores on both halves at the recipe's rate.
    """
    trials = np.array(tuned, float)  # shape (seeds, trials, 2)
    target = np.array(untuned, float).mean(1)  # shape (seeds,)
    curves = np.array([_mean_curve(seed_trials) for seed_trials in trials]).T
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
    """Return the expected score of the best of 0, 1, ... trials, selected on one half of the images and scored on the other.

    The result is the mean over both ways to assign the halves.
    """
    curves = []
    for choosing, reporting in ((0, 1), (1, 0)):
        scores = trials[:, choosing]
        curves.append(best_of(scores[0], scores[1:], trials[:, reporting]))
    return np.mean(curves, axis=0)


def _first(reached: Sequence[bool]) -> int | None:
    return reached.index(True) if True in reached else None
