"""Fit parallel lines to groups of models whose x and y scores both have errors."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mmairl.study.statistics.contrasts import Effect, with_error

Points = Mapping[str, Sequence[Sequence[tuple[float, float]]]]
# The slope is not tested if more than this share of the variance of x within groups is due to seeds.
MOST_NOISE = 0.5


def parallel_lines(points: Points, weights: Mapping[str, float]) -> Effect:
    """Return a weighted sum of the slope, which all groups share, and of the intercepts of the groups.

    Seeds move the mean x and y of a model. Least squares would therefore underestimate the slope, and would favor groups
    with larger x. The variance of the means, estimated from the seeds, is subtracted from the moments (Fuller, 1987). The
    standard error is that of the jackknife over models.

    Args:
        points: For each group, for each model, the scores (x, y) of each seed.
        weights: The weights of `slope` and of groups by name. An intercept is the height of a line at the mean of x.
    """
    models = [(group, np.array(runs)) for group, rows in points.items() for runs in rows]
    freedom = len(models) - len(points) - 1
    if freedom < 1 or any(len(rows) < 2 for rows in points.values()):
        return Effect(verdict='not run')
    if any(len(runs) < 2 for _, runs in models):
        return Effect(verdict='not tested (one seed)')
    estimate = _weighted_sum(models, weights)
    parts = [_weighted_sum(models[:i] + models[i + 1 :], weights) for i in range(len(models))]
    if not np.isfinite([estimate, *parts]).all():
        return Effect(verdict='the x scores of the models are too similar')
    error = math.sqrt((len(parts) - 1) * np.var(parts))
    return with_error(Effect(estimate=estimate, freedom=freedom), error)


def _weighted_sum(models: Sequence[tuple[str, np.ndarray]], weights: Mapping[str, float]) -> float:
    means = np.array([runs.mean(0) for _, runs in models])
    labels = np.array([group for group, _ in models])
    errors = np.mean([np.cov(runs.T) / len(runs) for _, runs in models], axis=0)
    centers = {group: means[labels == group].mean(0) for group in dict.fromkeys(labels)}
    inner = means - [centers[group] for group in labels]
    moments = inner.T @ inner
    corrected = moments - (len(models) - len(centers)) * errors
    if corrected[0, 0] < (1 - MOST_NOISE) * moments[0, 0] or moments[0, 0] == 0:
        return math.nan
    slope = corrected[0, 1] / corrected[0, 0]
    middle = means[:, 0].mean()
    total = weights.get('slope', 0.0) * slope
    for group, (x, y) in centers.items():
        total += weights.get(group, 0.0) * (y + slope * (middle - x))
    return float(total)
