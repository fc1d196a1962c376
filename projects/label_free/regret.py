"""Regret of a measure without labels: how much test score is lost by choosing the network that the measure prefers.

A choice is a set of networks, such as the trials of a search. Its regret is the test score of the best network minus that of
the chosen network. Choices of one kind, such as between the settings of a method, form a situation. Choices within one row
of a study (the runs of one config) are not independent, so the sign test counts each row once, with the mean regret over
its choices.

A measure is trusted if its mean regret is within the margin and an exact sign test shows that more than half of all rows are
within the margin. It is useless if the test shows that more than half of all rows are outside the margin. Holm's method
corrects for the number of measures in a situation. With twenty measures, at least nine rows are necessary to trust a measure,
and if there are only nine, all of them must be within the margin.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from mmairl.study.statistics.compare_rows import LEVEL, UNDECIDED, holm
from projects.label_free.trusted import TRUSTED

USELESS = 'do not use it here'
DRAWS = 2000
# For each choice: the test scores of its networks, and their goodness by a measure (higher is better).
Choices = Sequence[tuple[np.ndarray, np.ndarray]]


def regrets(scores: np.ndarray, goodness: np.ndarray) -> np.ndarray:
    """Return the regret of each choice. The last axis of both arrays has one entry per network of a choice.

    If a measure prefers several networks equally, their regrets are averaged.
    """
    is_preferred = goodness == goodness.max(-1, keepdims=True)
    return scores.max(-1) - (scores * is_preferred).sum(-1) / is_preferred.sum(-1)


def regret_interval(choices: Choices, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean regret, by a bootstrap over the choices and over the networks of each choice."""
    rng, samples = np.random.default_rng(seed), []
    for scores, goodness in choices:
        places = rng.integers(len(scores), size=(draws, len(scores)))
        samples.append(regrets(scores[places], goodness[places]))
    choice_places = rng.integers(len(samples), size=(draws, len(samples)))
    low, high = np.quantile(
        np.array(samples)[choice_places, np.arange(draws)[:, None]].mean(1), [0.025, 0.975]
    )
    return float(low), float(high)


def correlation(choices: Choices) -> float | None:
    """Return Spearman's correlation of measure and score, averaged over the choices in which both have several values."""
    ranks = [(stats.rankdata(scores), stats.rankdata(goodness)) for scores, goodness in choices]
    correlations = [np.corrcoef(pair)[0, 1] for pair in ranks if min(map(np.ptp, pair)) > 0]
    return float(np.mean(correlations)) if correlations else None


def words(
    within: Sequence[int], units: Sequence[int], mean: Sequence[float], margin: float
) -> list[str]:
    """Return a verdict for each measure of a situation, from the number of rows (`units`) and of those `within` the margin."""
    within, units, mean = map(np.asarray, (within, units, mean))
    good, bad = (
        holm(stats.binom.sf(count - 1, units, 0.5)) < LEVEL for count in (within, units - within)
    )
    return np.select([good & (mean <= margin), bad], [TRUSTED, USELESS], UNDECIDED).tolist()


def judge(
    situation: Mapping[str, Choices],
    margin: float,
    rows: Mapping[str, Sequence[Hashable]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return regret, interval, rank correlation and verdict for each measure of a situation.

    Args:
        situation: For each measure, the choices in which it has a value.
        margin: The largest acceptable regret.
        rows: For each measure, the row of each choice. The sign test counts a row once; by default, it counts each choice.
    """
    cells = {}
    units = []
    for name, choices in situation.items():
        values = np.array([float(regrets(*choice)) for choice in choices])
        low, high = regret_interval(choices)
        regrets_by_row: dict[Hashable, list[float]] = {}
        for row, regret in zip(rows[name] if rows else range(len(values)), values):
            regrets_by_row.setdefault(row, []).append(regret)
        units.append(
            [np.mean(regrets_of_row) <= margin for regrets_of_row in regrets_by_row.values()]
        )
        counts = dict(choices=len(values), within=int(np.sum(values <= margin)))
        cells[name] = dict(
            counts,
            regret=float(values.mean()),
            low=low,
            high=high,
            correlation=correlation(choices),
        )
    mean = [cell['regret'] for cell in cells.values()]
    verdicts = words(list(map(sum, units)), list(map(len, units)), mean, margin) if cells else ()
    return {name: dict(cell, word=word) for (name, cell), word in zip(cells.items(), verdicts)}
