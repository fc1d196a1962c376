"""Plans how many seeds find an effect four times in five, from the spread of those that are there, itself an estimate."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.optimize import brentq

from mmairl.study.statistics.compare_rows import LEVEL, Comparison
from mmairl.study.statistics.designs import Design

POWER = 0.8
MOST = 1000  # seeds, beyond which --power says "more"


def power(effect: float, deviation: float, seeds: int, comparisons: int) -> float:
    """The chance that `seeds` runs a row find an effect by Holm's first step, the strictest.

    `deviation` is that of the differences seed by seed where seeds are blocks, and else the root of the sum of both variances.
    """
    return chance(effect, deviation / math.sqrt(seeds), seeds - 1, comparisons)


def chance(effect: float, error: float, freedom: float, comparisons: int) -> float:
    """Return the chance that a t-test with this standard error finds an effect, at the level of Holm's first step."""
    limit, shift = stats.t.ppf(1 - LEVEL / 2 / comparisons, freedom), abs(effect) / error
    wrong_side = stats.nct.cdf(-limit, freedom, shift)  # scipy has NaN for some that are next to nothing
    return float(stats.nct.sf(limit, freedom, shift) + np.nan_to_num(wrong_side))


def seeds_for(effect: float, deviation: float, comparisons: int) -> int | None:
    """The fewest seeds a row that find the effect four times in five; None for more than MOST."""
    counts = range(2, MOST + 1)
    return next((n for n in counts if power(effect, deviation, n, comparisons) >= POWER), None)


def visible_effect(deviation: float, seeds: int, comparisons: int) -> float:
    """The effect that so many seeds find four times in five."""
    high = deviation
    while power(high, deviation, seeds, comparisons) < POWER:
        high *= 2
    return float(brentq(lambda effect: power(effect, deviation, seeds, comparisons) - POWER, 0, high))


def plan_seeds(comparisons: Sequence[Comparison], effect: float) -> list[tuple[str, str, str, str, str]]:
    """Return for each comparison row, spread, seeds, the effect that they find, and how many `effect` wants, as text."""
    lines = []
    for pair in comparisons:
        if pair.error is None:
            lines.append((pair.row, '–', str(pair.seeds), '–', '–'))
            continue
        wanted = seeds_for(effect, pair.deviation, len(comparisons))
        # By the seeds that there are, of which one row may have more.
        seen = visible_effect(pair.error * math.sqrt(pair.freedom + 1), int(pair.freedom) + 1, len(comparisons))
        lines.append(
            (pair.row, f'{pair.deviation:.2f}', str(pair.seeds), f'{seen:.1f}', str(wanted or f'more than {MOST}'))
        )
    return lines


def more_runs(effect: float, spread: float, runs: int, design: Design, blocks: bool) -> int | None:
    """Return how many more runs, the same number in each row, find a main effect or interaction of that size.

    None for more than MOST seeds.
    """
    rows = len(design.rows)
    for seeds in range(2, MOST + 1):
        alike = (rows - blocks) * (seeds - 1) ** 2 / (seeds + 1)  # what Satterthwaite's has for rows of one spread
        freedom = min(alike, (seeds - 1) * math.log2(rows) / 2)
        if chance(effect, 2 * spread / math.sqrt(rows * seeds), freedom, len(design.asked)) >= POWER:
            return max(0, rows * seeds - runs)
    return None
