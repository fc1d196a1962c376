"""Which factor did it: main effects, interactions, and each factor's share of the whole gain, whatever the order of steps.

A linear model over all runs of a design with two levels a factor (`designs.py`), the levels as -1 and 1. A main effect is the
mean change from a factor's first level to its second over all rows. An interaction is half the difference between the effects
that a factor has with the other at its second level and at its first, as in Box, Hunter and Hunter.

The error is pure: what is left of the runs when each row has a mean of its own, and each seed an effect where seeds are
blocks. One spread for all rows is right here, as it is not for single steps: every row has the same weight in every
effect, and the mean of the rows' variances is what it estimates.

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
from scipy import stats

from mmairl.study import designs
from mmairl.study.designs import Design
from mmairl.study.statistics import LEVEL, MOST, POWER, chance, same_start, scores_by_seed, verdicts


@dataclass(frozen=True)
class Effect:
    """A main effect or a pairwise interaction; what cannot be told is None, and `verdict` says why."""

    name: str
    factors: tuple[str, ...]
    verdict: str
    asked: (
        bool  # main effects, and interactions that the study declares: one family; the other interactions are another
    )
    aliases: tuple[str, ...] = ()  # effects that cannot be told from it, each with its sign
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Share:
    """What a factor brings to the whole gain, in points."""

    factor: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Attribution:
    """What the runs of a design say of its factors by one score."""

    metric: str
    margin: float
    resolution: str  # of the design, in words
    runs: int
    blocks: bool  # whether seeds are blocks
    effects: tuple[Effect, ...]
    shares: tuple[Share, ...]
    gain: Share  # from all first levels to all second ones, the sum of the shares
    exact: bool  # shares of the measured means themselves; else of the model with main effects and pairs
    missing: tuple[str, ...]  # rows with the seeds that they lack
    spread: float | None = None  # the standard deviation of runs, without the seeds' where they are blocks
    wanted: int | None = None  # how many more runs find a main effect of the margin four times in five


Terms = list[tuple[str, ...]]


def attribute(study: Mapping[str, Any], metric: str, margin: float) -> Attribution:
    """A record of a study whose rows are crossed, as `collect` makes it, by one score."""
    design = Design(**{key: study['design'][key] for key in ('factors', 'levels', 'rows', 'interactions')})
    scores = {row['name']: scores_by_seed(row, metric) for row in study['rows']}
    runs = [(name, seed) for name in design.rows for seed in scores[name]]
    blocks = bool(runs) and _seeds_are_blocks(study, scores)
    lines = np.array([scores[name][seed] for name, seed in runs])
    fixed = _columns([seed for _, seed in runs])[:, 1:] if blocks else np.empty((len(runs), 0))
    terms = _terms(design, [name for name, _ in runs], fixed)
    table = np.hstack([_model(design, [name for name, _ in runs], terms), fixed])
    inverse = np.linalg.pinv(table) if len(runs) else np.empty((1, 0))
    error, freedom = _pure_error(lines, [name for name, _ in runs], fixed)

    def estimate(weights: Mapping[tuple[str, ...], float]) -> tuple[float, float] | None:
        """A sum of coefficients and its standard error; None where a term is not in the model."""
        if not weights or not weights.keys() <= set(terms):
            return None
        contrast = np.zeros(len(inverse))
        for term, weight in weights.items():
            contrast[1 + terms.index(term)] = weight
        by_run = contrast @ inverse
        return float(by_run @ lines), float(error * np.linalg.norm(by_run))

    found = {effect: estimate({effect: 2.0}) for effect in design.distinct}
    odd = [term for term in terms if len(term) % 2]
    by_factor = [{term: 2 / len(term) for term in odd if factor in term} for factor in design.factors]
    gain = _share('all factors', estimate(dict.fromkeys(odd, 2.0) if all(by_factor) else {}), freedom)
    return Attribution(
        metric=metric,
        margin=margin,
        resolution=design.words,
        runs=len(runs),
        blocks=blocks,
        effects=tuple(_effects(design, found, freedom, margin)),
        shares=tuple(_share(name, estimate(weights), freedom) for name, weights in zip(design.factors, by_factor)),
        gain=gain,
        exact=len(terms) == 2 ** len(design.factors) - 1,
        missing=tuple(_missing(study, scores)),
        spread=error if freedom else None,
        wanted=more_runs(margin, error, len(runs), design, blocks) if error > 0 else None,
    )


def _seeds_are_blocks(study: Mapping, scores: Mapping[str, Mapping]) -> bool:
    """Whether every seed means the same in each row that has it as in the first, and some row has two."""
    first = study['rows'][0]
    pairs = [(row, seed) for row in study['rows'][1:] for seed in scores[row['name']]]
    common = all(seed in scores[first['name']] and same_start(row, first, seed) for row, seed in pairs)
    return common and len(scores[first['name']]) > 1


def _columns(labels: Sequence) -> np.ndarray:
    """One column for each label, 1 where a run has it."""
    return (np.array(labels)[:, None] == np.array(list(dict.fromkeys(labels)))).astype(float)


def _model(design: Design, names: Sequence[str], terms: Terms) -> np.ndarray:
    return np.stack([design.signs(term, names) for term in [(), *terms]], axis=1).astype(float)


def _terms(design: Design, names: Sequence[str], fixed: np.ndarray) -> Terms:
    """The largest model that the finished runs can fit: all interactions, pairs, what is asked, main effects; or none."""
    counts = range(1, len(design.factors) + 1)
    every = [effect for count in counts for effect in combinations(design.factors, count)]
    mains = [(factor,) for factor in design.factors]
    largest = [every] if design.resolution is None else []
    for terms in [*largest, design.distinct, design.asked, mains]:
        table = np.hstack([_model(design, names, terms), fixed]) if names else np.zeros((0, 1))
        if len(table) and np.linalg.matrix_rank(table) == table.shape[1]:
            return terms
    return []


def _pure_error(values: np.ndarray, names: Sequence[str], fixed: np.ndarray) -> tuple[float, int]:
    """The standard deviation within rows, less the seeds' effects where they are fixed, and its degrees of freedom."""
    if not len(values):
        return 0.0, 0
    table = np.hstack([_columns(names), fixed])
    left = values - table @ (np.linalg.pinv(table) @ values)
    freedom = len(values) - int(np.linalg.matrix_rank(table))
    return (math.sqrt(left @ left / freedom), freedom) if freedom else (0.0, 0)


def _effects(design: Design, found: Mapping, freedom: int, margin: float) -> list[Effect]:
    """Each with its interval and its verdict: those that the study asks for as one family, other pairs as another."""
    effects = []
    for asked in (True, False):
        family = [effect for effect in found if (effect in design.asked) == asked]
        numbers = np.array([found[effect] or (math.nan, math.nan) for effect in family]).reshape(-1, 2)
        numbers[numbers[:, 1] < 1e-12, 1] = math.nan
        words = verdicts(*numbers.T, np.float64(freedom or math.nan), margin) if family else ()
        for effect, (_, error), word in zip(family, numbers, words):
            share = _share('', found[effect], freedom)
            if found[effect] is None:
                word = 'not estimable: runs are missing'
            elif math.isnan(error):
                word = 'no spread: no verdict' if freedom else 'one seed: no verdict'
            ends = dict(estimate=share.estimate, low=share.low, high=share.high)
            aliases = tuple(design.aliases(effect))
            effects.append(Effect(designs.title(effect), effect, str(word), asked, aliases, **ends))
    return effects


def _share(name: str, found: tuple[float, float] | None, freedom: int) -> Share:
    """With its 95 % interval, where there is an error."""
    if found is None:
        return Share(name)
    estimate, error = found
    half = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error if error > 0 else None
    return Share(name, estimate, None if half is None else estimate - half, None if half is None else estimate + half)


def _missing(study: Mapping, scores: Mapping[str, Mapping]) -> list[str]:
    lacking = {name: [str(seed) for seed in study['seeds'] if seed not in of] for name, of in scores.items()}
    return [f'{name}: seed{"s" * (len(of) > 1)} {", ".join(of)}' for name, of in lacking.items() if of]


def more_runs(effect: float, spread: float, runs: int, design: Design, blocks: bool) -> int | None:
    """How many more runs, the same number in each row, find a main effect or interaction of that size four times in five.

    None for more than MOST seeds. The spread is an estimate from the present runs, so this is no promise.
    """
    rows = len(design.rows)
    for seeds in range(2, MOST + 1):
        freedom = (rows - blocks) * (seeds - 1)
        if chance(effect, 2 * spread / math.sqrt(rows * seeds), freedom, len(design.asked)) >= POWER:
            return max(0, rows * seeds - runs)
    return None
