"""Which factor did it: main effects, interactions, and each factor's share of the whole gain, whatever the order of steps.

A linear model over all runs of a design with two levels a factor (`designs.py`), the levels as -1 and 1. A main effect is the
mean change from a factor's first level to its second over all rows. An interaction is half the difference between the effects
that a factor has with the other at its second level and at its first, as in Box, Hunter and Hunter.

The error is pure: what is left of the runs when each row has a mean of its own, and each seed an effect where seeds are
blocks. Each row has a spread of its own, and an estimate the degrees of freedom of Satterthwaite, as in Welch's test: with one
spread for all rows, a null design whose rows spread as unequally as the demo's ladder has a false alarm in 8 % at two seeds.

Shapley's share of a factor is its gain averaged over all orders in which the factors could be added. In this model a
term's share is twice its coefficient, divided among its factors, where they are odd in number, and nothing where they are
even. So it is the main effect, but for interactions of three factors and more, which only a full factorial can tell.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mmairl.study.numbers.designs import Design, Effect, title
from mmairl.study.numbers.statistics import MOST, POWER, chance, interval, same_start, scores_by_seed, verdicts

Terms = list[Effect]
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]  # estimate, standard error, degrees of freedom


@dataclass(frozen=True)
class Fit:
    """A linear model over runs: what a coefficient weighs each run with, and what rows and seeds leave of the runs as error."""

    terms: Terms
    weights: np.ndarray  # (1 + terms and more, runs)
    residual: np.ndarray  # (runs, runs)
    rows: np.ndarray  # (runs, rows), 1 where a run is of the row
    freedom: int

    def variances(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of a run of each row, and their degrees of freedom; scores are (..., runs). A row's only run has the mean of all."""
        squares = (scores @ self.residual) ** 2
        pooled = squares.sum(-1, keepdims=True) / self.freedom
        own = np.diag(self.residual) @ self.rows
        known = own > 1e-9
        return (
            np.where(known, squares @ self.rows / np.where(known, own, 1), pooled),
            np.where(known, own, self.freedom),
        )

    def estimate(self, scores: np.ndarray, sums: Mapping[Effect, float]) -> Numbers | None:
        """A sum of coefficients, NaN for the error where there is none; None where a term is not in the model."""
        if not sums or not sums.keys() <= set(self.terms):
            return None
        by_run = sum(weight * self.weights[1 + self.terms.index(term)] for term, weight in sums.items())
        estimate = scores @ by_run
        if not self.freedom:
            return estimate, np.full_like(estimate, math.nan), np.full_like(estimate, math.nan)
        variances, freedom = self.variances(scores)
        parts = variances * (by_run**2 @ self.rows)
        error = np.sqrt(parts.sum(-1))
        error = np.where(error > 1e-9, error, math.nan)  # runs that are equal but for rounding
        return estimate, error, np.minimum(self.freedom, error**4 / (parts**2 / freedom).sum(-1))


def fit(design: Design, runs: Sequence[tuple[str, int]], blocks: bool) -> Fit:
    """The largest model that these runs (row, seed) can tell: with all interactions, with pairs, with those asked, without."""
    if not runs:
        return Fit([], np.zeros((1, 0)), np.zeros((0, 0)), np.zeros((0, 0)), 0)
    names, seeds = zip(*runs)
    rows, fixed = _columns(names), _columns(seeds)[:, 1:] if blocks else np.empty((len(runs), 0))
    counts = range(1, len(design.factors) + 1)
    every = [effect for count in counts for effect in combinations(design.factors, count)]
    mains = [(factor,) for factor in design.factors]
    for terms in [*([every] if design.resolution is None else []), design.distinct, design.asked, mains, []]:
        columns = [design.signs(term, names) for term in [(), *terms]]
        table = np.hstack([np.stack(columns, axis=1), fixed])
        if np.linalg.matrix_rank(table) == table.shape[1]:
            break
    means = np.hstack([rows, fixed])
    residual = np.eye(len(runs)) - means @ np.linalg.pinv(means)
    return Fit(terms, np.linalg.pinv(table), residual, rows, len(runs) - int(np.linalg.matrix_rank(means)))


def shares(factors: Sequence[str], terms: Terms) -> dict[str, dict[Effect, float]]:
    """Shapley's share of each factor as a sum of coefficients."""
    odd = [term for term in terms if len(term) % 2]
    return {factor: {term: 2 / len(term) for term in odd if factor in term} for factor in factors}


def attribute(study: Mapping[str, Any], metric: str, margin: float) -> dict[str, Any]:
    """What the runs of a design say of its factors by one score, from the study's record as `collect` makes it."""
    design = Design(**{key: study['design'][key] for key in ('factors', 'rows', 'interactions')})
    by_row = {row['name']: scores_by_seed(row, metric) for row in study['rows']}
    runs = [(name, seed) for name in design.rows for seed in by_row[name]]
    scores = np.array([by_row[name][seed] for name, seed in runs])
    blocks = bool(runs) and _seeds_are_blocks(study, by_row)
    model = fit(design, runs, blocks)
    found = {effect: model.estimate(scores, {effect: 2.0}) for effect in design.distinct}
    parts = {name: model.estimate(scores, sums) for name, sums in shares(design.factors, model.terms).items()}
    gain = model.estimate(scores, {term: 2.0 for term in model.terms if len(term) % 2})
    spread = math.sqrt(model.variances(scores)[0].mean()) if model.freedom else 0.0
    known = spread > 1e-9
    return dict(
        margin=margin,
        runs=len(runs),
        blocks=blocks,
        effects=_effects(design, found, model.freedom, margin),
        shares=[dict(factor=name, **_ends(of)) for name, of in parts.items()],
        gain=dict(factor='all factors', **_ends(gain)),  # the sum of the shares
        exact=len(model.terms) == 2 ** len(design.factors) - 1,  # else shares are of main effects and pairs alone
        missing=_missing(study, by_row),
        spread=spread if known else None,  # of runs, without the seeds' where they are blocks
        wanted=more_runs(margin, spread, len(runs), design, blocks) if known else None,
    )


def _seeds_are_blocks(study: Mapping, scores: Mapping[str, Mapping]) -> bool:
    """Whether every seed means the same in each row that has it, and some row has two."""
    for seed in set().union(*scores.values()):
        first, *others = (row for row in study['rows'] if seed in scores[row['name']])
        if not all(same_start(row, first, seed) for row in others):
            return False
    return max(map(len, scores.values())) > 1


def _columns(labels: Sequence) -> np.ndarray:
    """One column for each label, 1 where a run has it."""
    return (np.array(labels)[:, None] == np.array(list(dict.fromkeys(labels)))).astype(float)


def _effects(design: Design, found: Mapping, freedom: int, margin: float) -> list[dict[str, Any]]:
    """Each with its interval and its verdict: those that the study asks for as one family, other pairs as another."""
    effects = []
    for asked in (True, False):
        family = [effect for effect in found if (effect in design.asked) == asked]
        numbers = np.array([found[effect] or (math.nan,) * 3 for effect in family]).reshape(-1, 3)
        for effect, (_, error, _), word in zip(family, numbers, verdicts(*numbers.T, margin) if family else ()):
            if found[effect] is None:
                word = 'not estimable: runs are missing'
            elif math.isnan(error):
                word = 'no spread: no verdict' if freedom else 'one seed: no verdict'
            entry = dict(name=title(effect), factors=effect, verdict=str(word), asked=asked)
            effects.append(dict(entry, aliases=design.aliases(effect), **_ends(found[effect])))
    return effects


def _ends(found: Numbers | None) -> dict[str, float | None]:
    """The estimate with its 95 % interval; None is not known."""
    ends: dict[str, float | None] = dict(estimate=None, low=None, high=None)
    if found is not None:
        estimate, error, freedom = map(float, found)
        ends |= dict(estimate=estimate) if math.isnan(error) else interval(estimate, error, freedom)
    return ends


def _missing(study: Mapping, scores: Mapping[str, Mapping]) -> list[str]:
    lacking = {name: [str(seed) for seed in study['seeds'] if seed not in of] for name, of in scores.items()}
    return [f'{name}: seed{"s" * (len(of) > 1)} {", ".join(of)}' for name, of in lacking.items() if of]


def more_runs(effect: float, spread: float, runs: int, design: Design, blocks: bool) -> int | None:
    """How many more runs, the same number in each row, find a main effect or interaction of that size four times in five.

    None for more than MOST seeds. The spread is an estimate from the present runs, so this is no promise.
    """
    rows = len(design.rows)
    for seeds in range(2, MOST + 1):
        freedom = (rows - blocks) * (seeds - 1) ** 2 / (seeds + 1)  # what Satterthwaite's has for rows of one spread
        if chance(effect, 2 * spread / math.sqrt(rows * seeds), freedom, len(design.asked)) >= POWER:
            return max(0, rows * seeds - runs)
    return None
