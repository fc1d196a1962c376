"""Plan how many seeds detect an effect with 80 % power, from the spread of finished seeds, which is itself an estimate."""

import math
from collections.abc import Sequence

import numpy as np
import scipy

from mmairl.study.statistics.compare_rows import LEVEL, Comparison
from mmairl.study.statistics.designs import Design

POWER = 0.8
MOST = 1000  # seeds, beyond which --power prints "more"
UNKNOWN = '–'


def power(
    effect: float,
    deviation: float,
    seeds: int,
    comparisons: int,
) -> float:
    """Return the chance that `seeds` runs per row detect an effect at the first and strictest step of Holm's correction.

    Args:
        effect: The true difference.
        deviation: Standard deviation of the differences seed by seed; if seeds are no blocks, that of two independent runs.
        seeds: Runs of each row.
        comparisons: Size of the family.
    """
    return power_at(effect, deviation / math.sqrt(seeds), seeds - 1, comparisons)


def power_at(
    effect: float,
    error: float,
    freedom: float,
    comparisons: int,
) -> float:
    """Return P(|T| > t(1 - level / 2m)) of a noncentral t with shift effect / error."""
    limit = scipy.stats.t.ppf(1 - LEVEL / 2 / comparisons, freedom)
    shift = abs(effect) / error
    right_side = scipy.stats.nct.sf(limit, freedom, shift)
    wrong_side = scipy.stats.nct.cdf(
        -limit, freedom, shift
    )  # scipy returns NaN for some negligible values
    return float(right_side + np.nan_to_num(wrong_side))


def seeds_for(effect: float, deviation: float, comparisons: int) -> int | None:
    """Return the fewest seeds per row that detect the effect with 80 % power; None for more than MOST."""
    for seeds in range(2, MOST + 1):
        if power(effect, deviation, seeds, comparisons) >= POWER:
            return seeds
    return None


def visible_effect(deviation: float, seeds: int, comparisons: int) -> float:
    """Return the effect that this many seeds detect with 80 % power."""

    def surplus(effect: float) -> float:
        return power(effect, deviation, seeds, comparisons) - POWER

    high = deviation
    while surplus(high) < 0:
        high *= 2
    return float(scipy.optimize.brentq(surplus, 0, high))


def plan_seeds(
    comparisons: Sequence[Comparison], effect: float
) -> list[tuple[str, str, str, str, str]]:
    """Return for each comparison, as text: row, spread, seeds, visible effect, and seeds that `effect` requires."""
    family = len(comparisons)
    lines = []
    for pair in comparisons:
        if pair.error is None:
            lines.append((pair.row, UNKNOWN, str(pair.seeds), UNKNOWN, UNKNOWN))
            continue
        required = seeds_for(effect, pair.deviation, family)
        seeds = int(pair.freedom) + 1
        # One row may have more seeds, so the spread is taken from the standard error.
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
    """Return how many more runs, equally many per row, detect a main effect or interaction of this size.

    Returns None for more than MOST seeds.
    """
    rows = len(design.rows)
    for seeds in range(2, MOST + 1):
        satterthwaite = (rows - blocks) * (seeds - 1) ** 2 / (seeds + 1)  # for rows of equal spread
        freedom = min(satterthwaite, (seeds - 1) * math.log2(rows) / 2)
        error = 2 * spread / math.sqrt(rows * seeds)
        if power_at(effect, error, freedom, len(design.asked)) >= POWER:
            return max(0, rows * seeds - runs)
    return None
