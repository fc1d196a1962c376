"""Regret of a measure that needs no label: the test score of the best network of a choice, less that of the one it picks.

A choice is a set of networks, such as the trials of a search; choices of one kind are a situation. A measure is trusted where
more than half of all choices are shown to come within the margin (an exact sign test), and the mean regret does. It is not to
be used where more than half are shown not to. The measures of a situation are one family, corrected by Holm as verdicts are. So
few choices decide nothing: of twenty measures, none before nine choices that all go well.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from mmairl.study.statistics.compare_rows import LEVEL, UNDECIDED, holm
from projects.label_free.trusted import TRUSTED

USELESS = 'do not use it here'
DRAWS = 2000
# Of each, the networks' scores and how good the measure holds them to be.
Choices = Sequence[tuple[np.ndarray, np.ndarray]]


def regrets(scores: np.ndarray, goodness: np.ndarray) -> np.ndarray:
    """Return the regret of each choice (the last axis are its networks); of networks that tie, each is picked as often."""
    picked = goodness == goodness.max(-1, keepdims=True)
    return scores.max(-1) - (scores * picked).sum(-1) / picked.sum(-1)


def resampled(choices: Choices, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the mean regret, over draws of choices and of the networks in each."""
    rng, found = np.random.default_rng(seed), []
    for scores, goodness in choices:
        drawn = rng.integers(len(scores), size=(draws, len(scores)))
        found.append(regrets(scores[drawn], goodness[drawn]))
    which = rng.integers(len(found), size=(draws, len(found)))
    low, high = np.quantile(
        np.array(found)[which, np.arange(draws)[:, None]].mean(1), [0.025, 0.975]
    )
    return float(low), float(high)


def correlation(choices: Choices) -> float | None:
    """Return Spearman's rank correlation of measure and score, averaged over the choices that have one."""
    ranks = [(stats.rankdata(scores), stats.rankdata(goodness)) for scores, goodness in choices]
    found = [np.corrcoef(pair)[0, 1] for pair in ranks if min(map(np.ptp, pair)) > 0]
    return float(np.mean(found)) if found else None


def words(
    within: Sequence[int], choices: Sequence[int], mean: Sequence[float], margin: float
) -> list[str]:
    """Return a word for each measure of a situation, of how many choices it came within the margin."""
    within, choices, mean = map(np.asarray, (within, choices, mean))
    good, bad = (
        holm(stats.binom.sf(count - 1, choices, 0.5)) < LEVEL
        for count in (within, choices - within)
    )
    return np.select([good & (mean <= margin), bad], [TRUSTED, USELESS], UNDECIDED).tolist()


def judge(situation: Mapping[str, Choices], margin: float) -> dict[str, dict[str, Any]]:
    """Return regret, interval, rank correlation and a word for each measure of a situation."""
    cells = {}
    for name, choices in situation.items():
        found = np.array([float(regrets(*choice)) for choice in choices])
        low, high = resampled(choices)
        counts = dict(choices=len(found), within=int(np.sum(found <= margin)))
        cells[name] = dict(
            counts, regret=float(found.mean()), low=low, high=high, correlation=correlation(choices)
        )
    parts = ([cell[key] for cell in cells.values()] for key in ('within', 'choices', 'regret'))
    said = words(*parts, margin) if cells else ()
    return {name: dict(cell, word=word) for (name, cell), word in zip(cells.items(), said)}
