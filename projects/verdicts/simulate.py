"""Simulate studies with equal rows, and count how often the rules of mmairl.study.statistics call rows different.

Scores are like those of the demo: trained networks reach 30 %, with a standard deviation of a few points. A collapsed run
scores like an untrained network. All studies of a case are computed at once.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from mmairl.study.statistics.attribution import fit, how_many_collapsed
from mmairl.study.statistics.compare_rows import DIFFERS, collapse_limit, paired, tested, verdicts
from mmairl.study.statistics.designs import Design, fraction_rows

LEVEL = 30.0  # score of a trained network, in points
NULL = 12.0  # score of an untrained network, in points
IMAGE = 5 / 3  # the contribution of one of 60 test images to a score, in points
STUDIES = 8000  # simulated studies of each case
SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    'normal': lambda draw, shape: draw.normal(size=shape),
    'skewed (gamma of shape 4, the tail below)': lambda draw, shape: (
        (4 - draw.gamma(4, size=shape)) / 2
    ),
    'heavy tails (t of 3 degrees of freedom)': lambda draw, shape: (
        draw.standard_t(3, size=shape) / 3**0.5
    ),
    'one run in ten collapses': lambda draw, shape: draw.normal(size=shape),
    'one run in five collapses, of every second row': lambda draw, shape: draw.normal(size=shape),
    'tied (of 60 images)': lambda draw, shape: draw.normal(size=shape),
}
UNEQUAL = 'one run in five collapses, of every second row'
LADDERS = {  # for each row of a ladder (see `ladder`), the standard deviation of its runs
    'equal': np.full(7, 2.0),
    "the demo's": np.array([3.2, 2.0, 4.0, 6.0, 5.8, 5.4, 1.4]),
    'one of 50 times': np.array([0.1, 0.1, 0.1, 5.0, 0.1, 0.1, 0.1]),
}
# The levels of the factors in each row: all combinations of two factors, and half of the combinations of five factors.
WHOLE, HALF = list(product((0, 1), repeat=2)), fraction_rows(5, 1, [(place,) for place in range(5)])
DESIGNS = {  # for a number of rows, the standard deviation of each row's runs
    'equal': lambda rows: np.full(rows, 2.0),
    'up to 8 times': lambda rows: np.geomspace(0.5, 4, rows),
    'one of 16 times': lambda rows: np.r_[np.full(rows - 1, 0.3), 4.8],
}


def scores(
    draw: np.random.Generator,
    shape: str,
    spread: np.ndarray,
    seeds: int,
    studies: int,
    blocks: bool,
):
    """Return the scores (study, row, seed) of equally good rows. If `blocks`, each seed shifts the scores of all rows."""
    size = (studies, len(spread), seeds)
    values = (
        LEVEL
        + spread[:, None] * SHAPES[shape](draw, size)
        + blocks * 3 * draw.normal(size=(studies, 1, seeds))
    )
    if shape.startswith('tied'):
        values = np.round(values / IMAGE) * IMAGE
    if 'collapses' in shape:
        chance = (
            np.full(len(spread), 0.1)
            if shape not in UNEQUAL
            else 0.2 * (np.arange(len(spread)) % 2)
        )
        values = np.where(
            draw.random(size) < chance[:, None], NULL + draw.normal(size=size), values
        )
    return values


def false_alarms(shape: str, numbers: Sequence[np.ndarray], share: np.ndarray) -> float:
    """Return the fraction of studies with a false difference.

    If rows really collapse unequally often, a difference in the number of collapsed runs is true, so only means are counted.
    """
    words = verdicts(*numbers, margin=1.0, share=share)
    return float(((words == DIFFERS) & (np.isnan(share) | (shape not in UNEQUAL))).any(-1).mean())


def ladder(
    shape: str,
    spread: np.ndarray,
    seeds: int,
    blocks: bool,
    missing: bool,
    null: float | None,
    studies: int = STUDIES,
) -> float:
    """Simulate ladders, in which each row is compared with the previous row. Return the fraction with a false difference.

    If `missing`, the row with the largest standard deviation lacks a run.
    """
    table = scores(np.random.default_rng(seeds), shape, spread, seeds, studies, blocks)
    if missing:
        table[:, spread.argmax(), 0] = np.nan
    limits = collapse_limit(table, null)
    *numbers, share = tested(table[:, 1:], table[:, :-1], (limits[:, 1:], limits[:, :-1]), blocks)
    return false_alarms(shape, numbers, share)


def design(
    levels: list[tuple[int, ...]],
    shape: str,
    spread: np.ndarray,
    seeds: int,
    blocks: bool,
    missing: bool,
    null: float | None,
    studies: int = STUDIES,
) -> float:
    """Simulate studies with a factorial design, and return the fraction with a false main effect."""
    plan = Design(
        tuple('abcdefgh'[: len(levels[0])]),
        {str(combination): combination for combination in levels},
    )
    runs = [(row, seed) for row in range(len(levels)) for seed in range(seeds)]
    runs.remove((int(spread.argmax()), 0)) if missing else None
    model = fit(plan, [(str(levels[row]), seed) for row, seed in runs], blocks)
    table = scores(np.random.default_rng(seeds), shape, spread, seeds, studies, blocks)
    if missing:
        table[:, spread.argmax(), 0] = np.nan
    fell = table < collapse_limit(table, null)[..., None]
    run_scores = table[(slice(None), *zip(*runs))]
    estimates = [model.estimate(run_scores, {effect: 2.0}) for effect in plan.asked]
    estimate, error, freedom = (np.stack(part, -1) for part in zip(*estimates))
    *_, share = how_many_collapsed(
        plan, [str(levels[row]) for row, _ in runs], fell[(slice(None), *zip(*runs))]
    )
    return false_alarms(shape, (estimate, error, freedom), share)


def simulate_searches(
    draw: np.random.Generator,
    searches: int,
    trials: int,
    sharp: float,
    place: float,
    studies: int = STUDIES,
) -> tuple[np.ndarray, ...]:
    """Simulate searches for the best value of a setting, and return scores by study and search.

    The first array has the score of the best trial of each search. The second array has the score of a fresh run with the
    setting of this trial. The expected score is 80 at the best setting, `place`, and falls by `sharp` times the squared
    distance from it. The first trial of a search has the published setting, 0. The standard deviation of a run is 2.8 points.
    """
    points = draw.uniform(-1, 1, (studies, searches, trials))
    points[..., 0] = 0
    true = 80 - sharp * (points - place) ** 2
    trial_scores = true + draw.normal(0, 2.8, true.shape)
    best = trial_scores.argmax(-1)[..., None]
    fresh = np.take_along_axis(true, best, -1) + draw.normal(0, 2.8, best.shape)
    return np.take_along_axis(trial_scores, best, -1)[..., 0], fresh[..., 0]


# For two equally good rows: the number of trials, the sharpness of the score's peak, and the value of the setting at the peak.
CHANCES = {
    'the same method, 1 trial against 20': ((1, 0.0, 0.0), (20, 0.0, 0.0)),
    'one has a flat peak, the other a sharp peak at another value; 20 trials each': (
        (20, 1.0, 0.0),
        (20, 20.0, 0.7),
    ),
}


def chances(case: str, searches: int) -> tuple[float, float]:
    """Return the fraction of studies with a false difference between searches in two equally good rows.

    The first fraction is for the scores of the best trials, the second for fresh runs with the settings of these trials.
    """
    draw = np.random.default_rng(searches)
    one, two = (simulate_searches(draw, searches, *row) for row in CHANCES[case])
    words = [
        verdicts(*(part[:, None] for part in paired(*pair)), margin=1.0) for pair in zip(one, two)
    ]
    return tuple(float((verdict == DIFFERS).mean()) for verdict in words)
