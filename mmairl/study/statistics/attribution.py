"""Effects of factors: main effects, interactions, and each factor's share of the whole gain, whatever the order of steps.

A linear model over all runs of a design with two levels a factor (`designs.py`), the levels as -1 and 1. A main effect is the
mean change from a factor's first level to its second over all rows. An interaction is half the difference between the effects
that a factor has with the other at its second level and at its first, as in Box, Hunter and Hunter.

The error is pure: what is left of the runs when each row has a mean of its own, and each seed an effect where seeds are
blocks. Each row has a spread of its own; where a row has but one run there is none, and no verdict. An estimate has the degrees
of freedom of Satterthwaite, but with n runs in the smallest of R rows no more than (n - 1) log2(R) / 2: without that limit two
runs a row give false alarms in 9 % of null designs of 16 rows when one spreads 16 times as much as the others.

Where rows are missing, an effect is told only if main effects and pairs as they may be leave it as it is. Runs that collapsed
are left out, and so is a row of which a single run learned, if the others tell as much. Then the means get no verdict, and
Fisher's exact test compares how many runs collapsed at the two levels of each factor.

Shapley's share of a factor is its gain averaged over all orders in which the factors could be added. In this model a
term's share is twice its coefficient, divided among its factors, where they are odd in number, and nothing where they are
even. So it is the main effect, but for interactions of three factors and more, which only a full factorial can tell.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mmairl.study.statistics.compare_rows import (
    COLLAPSED,
    DIFFERS,
    Numbers,
    exact_test,
    interval,
    known_error,
    limits_by_row,
    same_start,
    scores_by_seed,
    verdicts,
)
from mmairl.study.statistics.designs import Design, Effect, title

Terms = list[Effect]
Runs = Sequence[tuple[str, int]]  # row and seed


@dataclass(frozen=True)
class Fit:
    """A linear model over runs: what a coefficient weighs each run with, and what rows and seeds leave of the runs as error."""

    terms: Terms
    weights: np.ndarray  # (1 + terms and more, runs)
    residual: np.ndarray  # (runs, runs)
    rows: np.ndarray  # (runs, rows), 1 where a run is of the row
    freedom: int
    confounded: frozenset[Effect]  # the terms that these runs cannot tell

    def variances(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's variance of a run, and the degrees of freedom; scores are (..., runs). NaN for a row of one run."""
        own = np.diag(self.residual) @ self.rows
        own = np.where(own > 1e-9, own, math.nan)
        return (scores @ self.residual) ** 2 @ self.rows / own, own

    def estimate(self, scores: np.ndarray, sums: Mapping[Effect, float]) -> Numbers | None:
        """A sum of coefficients, NaN for the error where there is none; None where the runs do not tell one of the terms."""
        if not sums or not sums.keys() <= set(self.terms) - self.confounded:
            return None
        by_run = sum(weight * self.weights[1 + self.terms.index(term)] for term, weight in sums.items())
        estimate = scores @ by_run
        variances, freedom = self.variances(scores)
        parts = variances * (by_run**2 @ self.rows)
        error = known_error(parts.sum(-1))
        most = (self.rows.sum(0).min() - 1) * math.log2(self.rows.shape[1]) / 2
        return estimate, error, np.minimum(most, error**4 / (parts**2 / freedom).sum(-1))


def fit(design: Design, runs: Runs, blocks: bool) -> Fit:
    """The model with all interactions where each row has a run, and else with pairs and those of its terms that can be told."""
    if not runs:
        return Fit([], np.zeros((1, 0)), np.zeros((0, 0)), np.zeros((0, 0)), 0, frozenset(design.distinct))
    names, seeds = zip(*runs)
    rows, fixed = _columns(names), _columns(seeds)[:, 1:] if blocks else np.empty((len(runs), 0))
    counts = range(1, len(design.factors) + 1)
    every = [effect for count in counts for effect in combinations(design.factors, count)]
    terms = every if design.resolution is None and rows.shape[1] == len(design.rows) else design.distinct
    table = np.hstack([np.stack([design.signs(term, names) for term in [(), *terms]], axis=1), fixed])
    weights = np.linalg.pinv(table)
    mixed = abs(np.eye(table.shape[1]) - weights @ table).max(1) > 1e-6  # with something else that the runs do not tell
    means = np.hstack([rows, fixed])
    residual = np.eye(len(runs)) - means @ np.linalg.pinv(means)
    freedom = len(runs) - int(np.linalg.matrix_rank(means))
    confounded = frozenset(term for term, is_mixed in zip(terms, mixed[1:]) if is_mixed)
    return Fit(terms, weights, residual, rows, freedom, confounded)


def shares(factors: Sequence[str], terms: Terms) -> dict[str, dict[Effect, float]]:
    """Shapley's share of each factor as a sum of coefficients."""
    odd = [term for term in terms if len(term) % 2]
    return {factor: {term: 2 / len(term) for term in odd if factor in term} for factor in factors}


def attribute(study: Mapping[str, Any], metric: str, margin: float) -> dict[str, Any]:
    """Estimate the effects of a design's factors on one score, from the study's record as `collect` makes it."""
    design = Design(**{key: study['design'][key] for key in ('factors', 'rows', 'interactions')})
    rows, limits = [row for row in study['rows'] if row['name'] in design.rows], limits_by_row(study, metric)
    by_row = {row['name']: scores_by_seed(row, metric) for row in rows}
    finished = [(name, seed) for name in design.rows for seed in by_row[name]]
    fell = np.array([by_row[name][seed] < limits[name] for name, seed in finished], bool)
    learned = [run for run, collapsed in zip(finished, fell) if not collapsed]
    blocks = bool(learned) and _seeds_are_blocks(rows, by_row)
    runs, model = learned, fit(design, learned, blocks)
    left = Counter(name for name, _ in learned)
    several = [(name, seed) for name, seed in learned if left[name] > 1 or len(by_row[name]) == 1]
    if several != learned and not (without := fit(design, several, blocks)).confounded:
        runs, model = several, without
    scores = np.array([by_row[name][seed] for name, seed in runs])
    collapses = {}
    if fell.any():
        counts = zip(design.main, *how_many_collapsed(design, [name for name, _ in finished], fell))
        collapses = {main: dict(collapsed=(int(high), int(low)), share=float(p)) for main, high, low, p in counts}
    estimates = {effect: model.estimate(scores, {effect: 2.0}) for effect in design.distinct}
    parts = {name: model.estimate(scores, sums) for name, sums in shares(design.factors, model.terms).items()}
    gain = model.estimate(scores, {term: 2.0 for term in model.terms if len(term) % 2})
    spread = float(known_error(np.nanmean(model.variances(scores)[0]))) if model.freedom else math.nan
    return dict(
        margin=margin,
        runs=len(finished),
        collapsed=[f'{name}, seed {seed}' for (name, seed), collapsed in zip(finished, fell) if collapsed],
        alone=[f'{name}, seed {seed}' for name, seed in learned if (name, seed) not in runs],
        blocks=blocks,
        effects=_effects(design, estimates, left, model.freedom, collapses, margin),
        shares=[dict(factor=name, **_ends(share)) for name, share in parts.items()],
        gain=dict(factor='all factors', **_ends(gain)),  # the sum of the shares
        exact=len(model.terms) == 2 ** len(design.factors) - 1,  # else shares are of main effects and pairs alone
        spread=None if math.isnan(spread) else spread,  # of runs, without the seeds' where they are blocks
    )


def how_many_collapsed(design: Design, names: Sequence[str], fell: np.ndarray) -> tuple[np.ndarray, ...]:
    """For each main effect, how many runs collapsed at the second level and at the first, and the p-value, NaN where none did.

    `fell` is (..., runs), and `names` the rows of these.
    """
    high = np.array([design.signs(effect, names) > 0 for effect in design.main])
    counts = [fell.astype(int) @ at.T for at in (high, ~high)]
    p = exact_test(counts[0], high.sum(1), counts[1], (~high).sum(1))
    return *counts, np.where(fell.any(-1, keepdims=True), p, math.nan)


def _seeds_are_blocks(rows: Sequence[Mapping], scores: Mapping[str, Mapping]) -> bool:
    """Whether every seed means the same in each row that has it, and some row has two."""
    for seed in set().union(*scores.values()):
        first, *others = (row for row in rows if seed in scores[row['name']])
        if not all(same_start(row, first, seed) for row in others):
            return False
    return max(map(len, scores.values())) > 1


def _columns(labels: Sequence) -> np.ndarray:
    """One column for each label, 1 where a run has it."""
    return (np.array(labels)[:, None] == np.array(list(dict.fromkeys(labels)))).astype(float)


def _effects(
    design: Design, found: Mapping, counts: Mapping[str, int], freedom: int, collapses: Mapping, margin: float
) -> list[dict[str, Any]]:
    """Each with its interval and its verdict: those that the study asks for as one family, other pairs as another."""
    effects, (absent, alone) = [], ([name for name in design.rows if counts[name] == count] for count in (0, 1))
    for asked in (True, False):
        family = [effect for effect in found if (effect in design.asked) == asked]
        numbers = np.array([found[effect] or (math.nan,) * 3 for effect in family], float).reshape(-1, 3)
        share = np.array([collapses.get(effect, {}).get('share', math.nan) for effect in family])
        words = verdicts(*numbers.T, margin, share=share) if family else ()
        for effect, (_, error, _), word in zip(family, numbers, words):
            by_count = effect in collapses and word == DIFFERS
            if found[effect] is None and not by_count:
                word = f'not estimable without {", ".join(absent)}'
            elif collapses:
                word = DIFFERS if by_count else COLLAPSED
            elif math.isnan(error) and freedom and alone:
                word = f'one run of {", ".join(alone)}: no verdict'
            elif math.isnan(error):
                word = 'no spread: no verdict' if freedom else 'one seed: no verdict'
            entry = dict(
                name=title(effect), factors=effect, verdict=str(word), asked=asked, **collapses.get(effect, {})
            )
            effects.append(dict(entry, aliases=design.aliases(effect), **_ends(found[effect])))
    return effects


def _ends(found: Numbers | None) -> dict[str, float | None]:
    """The estimate with its 95 % interval; None is not known."""
    return dict(estimate=None, low=None, high=None) if found is None else interval(*map(float, found))
