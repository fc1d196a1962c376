"""Plan seeds: how many are required to detect an effect with 80 % power.

The calculation uses the spread between the finished runs, which is itself only an estimate.
"""

import math

# scipy imports `scipy.stats` on first use, so commands that only print a plan do not wait for this import.
import scipy

from mmairl.study.statistics.contrasts import LEVEL, Effect

POWER = 0.8
MOST_SEEDS = 1000


def power(size: float, error: float, freedom: float, family: int) -> float:
    """Return the probability that a t-test detects an effect in a family of tests with Bonferroni's correction.

    Args:
        size: The true effect.
        error: The standard error of its estimate.
        freedom: Degrees of freedom of the error.
        family: Number of effects that are corrected together.
    """
    limit = scipy.stats.t.ppf(1 - LEVEL / 2 / family, freedom)
    shift = abs(size) / error
    right_side = scipy.stats.nct.sf(limit, freedom, shift)
    # For some probabilities close to 0, scipy returns NaN.
    wrong_side = scipy.stats.nct.cdf(-limit, freedom, shift)
    return float(right_side + (0 if math.isnan(wrong_side) else wrong_side))


def seeds_needed(effect: Effect, family: int) -> int | None:
    """Return how many seeds detect an effect as large as its estimate or its margin, whichever is larger.

    Return None if the spread is unknown or MOST_SEEDS are not enough.
    """
    if not effect.tested:
        return None
    size = max(abs(effect.estimate), effect.margin or 0.0)
    seeds = len(effect.by_seed)
    for more in range(2, MOST_SEEDS + 1):
        error = effect.error * math.sqrt(seeds / more)
        freedom = effect.freedom * (more - 1) / (seeds - 1)
        if power(size, error, freedom, family) >= POWER:
            return more
    return None
