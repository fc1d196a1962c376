"""The benefit of hyperparameter tuning: how good the best of n trials is, and how many trials are close to the best one.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with changed options.

If a row is tuned by several searches, these have different trials and different seeds. The confidence intervals describe the
spread between searches, so they include the luck of both the trials and the seeds. A best score is optimistic if the same
scores chose the best trial.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from mmairl.study.statistics.compare_rows import interval


def best_of(
    published: float, others: Sequence[float], reported: Sequence[float] | None = None
) -> np.ndarray:
    """Return the expected best score of 1, 2, ... trials.

    The first trial has the published values of the hyperparameters, and the other trials follow in random order. If d of n
    scores are sampled without replacement, the k-th smallest of the n scores is the largest sampled score with probability
    C(k - 1, d - 1) / C(n, d).

    Args:
        published: Score of the trial with the published values.
        others: Scores of the other trials.
        reported: Scores of all trials on other images, in the same order, with the published trial first. If given, the
            best trial is still chosen by `published` and `others`, but the result is the expected value of its score in
            `reported`.
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
    """Return the expected best score for each number of trials, as the mean over searches with its 95 % interval.

    The curve ends at the number of trials of the shortest search. A single search gives no interval.
    """
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
    """Return the fraction of trials whose score is at most `points` below the best score.

    Trials cover the search space evenly, so this is also a fraction of the space.
    """
    scores = np.asarray(scores, float)
    return float(np.mean(scores >= scores.max() - points))
