"""Plan how many seeds a study needs to detect an effect with 80 % power.

A row of a study is one configuration, usually trained with several seeds. Seeds are blocks if each seed gives all rows the
same order of images and the same initial weights.

The calculation uses the spread between the finished runs, which is itself only an estimate.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy

from mmairl.study.statistics.compare_rows import LEVEL, Comparison
from mmairl.study.statistics.designs import Design

POWER = 0.8
# If more seeds per row than this are required, --power prints "more than 1000".
MOST = 1000
UNKNOWN = '–'


def power(
    effect: float,
    deviation: float,
    seeds: int,
    comparisons: int,
) -> float:
    """Return the probability that `seeds` runs per row detect an effect.

    An effect counts as detected if it passes the first step of Holm's correction, which is the strictest one.

    Args:
        effect: The true difference.
        deviation: Standard deviation of the difference between two runs of different rows. If seeds are blocks, both runs
            have the same seed.
        seeds: Number of runs per row.
        comparisons: Number of comparisons that are corrected together.
    """
    return power_at(effect, deviation / math.sqrt(seeds), seeds - 1, comparisons)


def power_at(
    effect: float,
    error: float,
    freedom: float,
    comparisons: int,
) -> float:
    """Return the power of a t-test with Bonferroni's correction for a number of comparisons.

    It is P(|T| > t(1 - level / 2m)) for m comparisons, where T has a noncentral t distribution with noncentrality effect /
    error.
    """
    limit = scipy.stats.t.ppf(1 - LEVEL / 2 / comparisons, freedom)
    shift = abs(effect) / error
    right_side = scipy.stats.nct.sf(limit, freedom, shift)
    # For some probabilities close to 0, scipy returns NaN, which is replaced by 0 below.
    wrong_side = scipy.stats.nct.cdf(-limit, freedom, shift)
    return float(right_side + np.nan_to_num(wrong_side))


def seeds_for(effect: float, deviation: float, comparisons: int) -> int | None:
    """Return the smallest number of seeds per row that detects the effect with 80 % power; None if it exceeds MOST."""
    for seeds in range(2, MOST + 1):
        if power(effect, deviation, seeds, comparisons) >= POWER:
            return seeds
    return None


def visible_effect(deviation: float, seeds: int, comparisons: int) -> float:
    """Return the smallest effect that the given number of seeds per row detects with 80 % power."""

    def surplus(effect: float) -> float:
        return power(effect, deviation, seeds, comparisons) - POWER

    high = deviation
    while surplus(high) < 0:
        high *= 2
    return float(scipy.optimize.brentq(surplus, 0, high))


def plan_seeds(
    comparisons: Sequence[Comparison], effect: float
) -> list[tuple[str, str, str, str, str]]:
    """Return the lines of a table that plans the number of seeds, one line for each comparison.

    The columns are the row, the standard deviation of a difference, the number of seeds, the smallest effect that these
    seeds detect, and the number of seeds that are required to detect `effect`.
    """
    family = len(comparisons)
    lines = []
    for pair in comparisons:
        if pair.error is None:
            lines.append((pair.row, UNKNOWN, str(pair.seeds), UNKNOWN, UNKNOWN))
            continue
        required = seeds_for(effect, pair.deviation, family)
        seeds = int(pair.freedom) + 1
        # The spread is computed from the standard error, because the two rows may have different numbers of seeds.
        visible = visible_effect(pair.error * math.sqrt(pair.freedom + 1), seeds, family)
        lines.append(
            (
                pair.row,
                f'{pair.deviation:.2f}',
                str(pair.seeds),
                f'{visible:.1f}',
                str(required or f'more than {MOST}'),
            )
        )
    return lines


def more_runs(
    effect: float,
    spread: float,
    runs: int,
    design: Design,
    blocks: bool,
) -> int | None:
    """Return how many more runs a design needs to detect a main effect or interaction with 80 % power.

    The runs are divided equally among the rows. Returns None if more than MOST seeds per row are required.

    Args:
        effect: The size of the effect.
        spread: Standard deviation of a run's score within its row.
        runs: Number of runs so far.
        design: The design.
        blocks: Whether seeds are blocks, which means that each seed gives all rows the same start.
    """
    rows = len(design.rows)
    for seeds in range(2, MOST + 1):
        # This approximates Satterthwaite's degrees of freedom if all rows have the same true spread. The factor
        # (seeds - 1) / (seeds + 1) is due to the random differences between their estimated spreads.
        satterthwaite = (rows - blocks) * (seeds - 1) ** 2 / (seeds + 1)
        freedom = min(satterthwaite, (seeds - 1) * math.log2(rows) / 2)
        error = 2 * spread / math.sqrt(rows * seeds)
        if power_at(effect, error, freedom, len(design.asked)) >= POWER:
            return max(0, rows * seeds - runs)
    return None
