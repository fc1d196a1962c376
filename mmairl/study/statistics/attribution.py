"""Effects of the factors of a design: main effects, interactions, and the share of each factor in the total gain.

A linear model is fitted to all runs of a design with two levels per factor (`designs.py`), coded as -1 and 1. A main effect is
the mean change from a factor's first level to its second over all rows. An interaction is half the difference between the
effects of a factor at the second and at the first level of the other factor, as in Box, Hunter and Hunter.

The error comes from replicated runs only: from what remains after subtracting the mean of each row and, if seeds are blocks,
the effect of each seed. Each row has its own variance. If every row has a single run, there is no error and no verdict. An
estimate has Satterthwaite's degrees of freedom, but at most (n - 1) log2(R) / 2 for R rows, of which the smallest has n runs.
Without this limit, two runs per row give false alarms in 9 % of null designs with 16 rows if the standard deviation of one row
is 16 times that of the others.

If rows are missing, an effect is reported only if main effects and pairwise interactions of any size cannot change it.
Collapsed runs are excluded, and so is a row with a single run that learned, unless an effect requires it. If a run collapsed,
the means have no verdict, and Fisher's exact test compares how many runs collapsed at the two levels of each factor.

The share of a factor is its gain, averaged over all orders in which the factors can be added (Shapley). In this model, a term
with an odd number of factors adds twice its coefficient, divided equally among its factors, and a term with an even number
adds nothing. The share is therefore the main effect, unless there are interactions of three or more factors, which only a full
factorial can estimate.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from mmairl.study.statistics.compare_rows import (
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
from mmairl.study.statistics.verdict_words import (
    COLLAPSED,
    DIFFERS,
    NO_SPREAD,
    ONE_SEED,
    verdict_of,
)

Terms = list[Effect]
Runs = Sequence[tuple[str, int]]  # row and seed
SINGULAR = 1e-6  # a coefficient that is mixed with others by more than this is not estimable
NO_FREEDOM = 1e-9
UNKNOWN = (math.nan,) * 3


@dataclass(frozen=True)
class Fit:
    """A linear model over runs.

    Args:
        terms: Effects in the model.
        weights: (1 + terms and blocks, runs); the weight of each run in each coefficient.
        residual: (runs, runs); projects scores on what rows and seeds do not explain.
        rows: (runs, rows); 1 if the run belongs to the row.
        freedom: Degrees of freedom of the error.
        confounded: Terms that these runs cannot estimate.
    """

    terms: Terms
    weights: np.ndarray
    residual: np.ndarray
    rows: np.ndarray
    freedom: int
    confounded: frozenset[Effect]

    def variances(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each row's variance of a run and its degrees of freedom, NaN for a row of one run.

        Args:
            scores: (..., runs).
        """
        freedom = np.diag(self.residual) @ self.rows
        freedom = np.where(freedom > NO_FREEDOM, freedom, math.nan)
        squares = (scores @ self.residual) ** 2 @ self.rows
        return squares / freedom, freedom

    def estimate(self, scores: np.ndarray, sums: Mapping[Effect, float]) -> Numbers | None:
        """Return a weighted sum of coefficients with its error and degrees of freedom.

        The error is sqrt(sum v_r w_r) over rows r with variances v; the degrees of freedom are Satterthwaite's
        error^4 / sum((v_r w_r)^2 / f_r), limited. Returns None if the runs cannot estimate one of the terms.
        """
        estimable = set(self.terms) - self.confounded
        if not sums or not sums.keys() <= estimable:
            return None
        by_run = sum(
            weight * self.weights[1 + self.terms.index(term)] for term, weight in sums.items()
        )
        variances, freedom = self.variances(scores)
        parts = variances * (by_run**2 @ self.rows)
        error = known_error(parts.sum(-1))
        satterthwaite = error**4 / (parts**2 / freedom).sum(-1)
        smallest = self.rows.sum(0).min()
        limit = (smallest - 1) * math.log2(self.rows.shape[1]) / 2
        return scores @ by_run, error, np.minimum(limit, satterthwaite)


def fit(design: Design, runs: Runs, blocks: bool) -> Fit:
    """Return the model: with all interactions if each row of a full factorial has a run, else with separable effects."""
    if not runs:
        empty = np.zeros((0, 0))
        return Fit([], np.zeros((1, 0)), empty, empty, 0, frozenset(design.distinct))
    names, seeds = zip(*runs)
    rows = indicators(names)
    fixed = indicators(seeds)[:, 1:] if blocks else np.empty((len(runs), 0))
    complete = design.resolution is None and rows.shape[1] == len(design.rows)
    terms = all_effects(design) if complete else design.distinct
    columns = [design.signs(term, names) for term in [(), *terms]]
    table = np.hstack([np.stack(columns, axis=1), fixed])
    weights = np.linalg.pinv(table)
    mixed = abs(np.eye(table.shape[1]) - weights @ table).max(1) > SINGULAR
    means = np.hstack([rows, fixed])
    return Fit(
        terms=terms,
        weights=weights,
        residual=np.eye(len(runs)) - means @ np.linalg.pinv(means),
        rows=rows,
        freedom=len(runs) - int(np.linalg.matrix_rank(means)),
        confounded=frozenset(term for term, is_mixed in zip(terms, mixed[1:]) if is_mixed),
    )


def all_effects(design: Design) -> Terms:
    effects = []
    for count in range(1, len(design.factors) + 1):
        effects += combinations(design.factors, count)
    return effects


def indicators(labels: Sequence) -> np.ndarray:
    """Return a column for each label, 1 if a run has it."""
    distinct = list(dict.fromkeys(labels))
    return (np.array(labels)[:, None] == np.array(distinct)).astype(float)


def shares(factors: Sequence[str], terms: Terms) -> dict[str, dict[Effect, float]]:
    """Return the share of each factor as a weighted sum of coefficients: 2 / |term| for each odd term with the factor."""
    odd = [term for term in terms if len(term) % 2]
    by_factor = {}
    for factor in factors:
        by_factor[factor] = {term: 2 / len(term) for term in odd if factor in term}
    return by_factor


def attribute(study: Mapping[str, Any], metric: str, margin: float) -> dict[str, Any]:
    """Return the effects of a design's factors on one score.

    Args:
        study: The record of the study, as `collect` writes it.
        metric: Key of the score.
        margin: Effects below the margin are equivalent to none.
    """
    fields = {key: study['design'][key] for key in ('factors', 'rows', 'interactions')}
    design = Design(**fields)
    rows = [row for row in study['rows'] if row['name'] in design.rows]
    scores = {row['name']: scores_by_seed(row, metric) for row in rows}
    found = DesignEffects(design, rows, scores, limits_by_row(study, metric), margin)
    runs, model = found.selected
    gain = {term: 2.0 for term in model.terms if len(term) % 2}
    by_factor = shares(design.factors, model.terms)
    variances = model.variances(found.values)[0] if model.freedom else math.nan
    spread = float(known_error(np.nanmean(variances))) if model.freedom else math.nan
    return dict(
        margin=margin,
        runs=len(found.finished),
        collapsed=_names(run for run in found.finished if run not in found.learned),
        alone=_names(run for run in found.learned if run not in runs),
        blocks=found.blocks,
        effects=found.entries(),
        shares=[dict(factor=name, **found.ends(sums)) for name, sums in by_factor.items()],
        gain=dict(factor='all factors', **found.ends(gain)),  # the sum of the shares
        # Without all effects, shares include only main effects and pairs.
        exact=len(model.terms) == 2 ** len(design.factors) - 1,
        # The standard deviation of runs, without the effects of seeds if seeds are blocks.
        spread=None if math.isnan(spread) else spread,
    )


def _names(runs: Iterable[tuple[str, int]]) -> list[str]:
    return [f'{name}, seed {seed}' for name, seed in runs]


@dataclass(frozen=True)
class DesignEffects:
    """The effects of a design's factors on one score, from the finished runs of its rows.

    Args:
        design: The design.
        rows: Its rows, as in study.json.
        scores: The score of each run, by row and seed.
        limits: The score below which a run has collapsed, by row.
        margin: Effects below the margin are equivalent to none.
    """

    design: Design
    rows: Sequence[Mapping]
    scores: Mapping[str, Mapping[int, float]]
    limits: Mapping[str, float]
    margin: float

    @cached_property
    def finished(self) -> list[tuple[str, int]]:
        return [(name, seed) for name in self.design.rows for seed in self.scores[name]]

    @cached_property
    def learned(self) -> list[tuple[str, int]]:
        """The finished runs that have not collapsed."""
        learned = []
        for name, seed in self.finished:
            if self.scores[name][seed] >= self.limits.get(name, -math.inf):
                learned.append((name, seed))
        return learned

    @cached_property
    def counts(self) -> Counter[str]:
        """How many runs of each row learned."""
        return Counter(name for name, _ in self.learned)

    @cached_property
    def blocks(self) -> bool:
        return bool(self.learned) and _seeds_are_blocks(self.rows, self.scores)

    @cached_property
    def selected(self) -> tuple[list[tuple[str, int]], Fit]:
        """The runs of the model, and the model. Rows with a single run that learned are excluded unless one is needed."""
        model = fit(self.design, self.learned, self.blocks)
        several = [
            run for run in self.learned if self.counts[run[0]] > 1 or len(self.scores[run[0]]) == 1
        ]
        if several == self.learned:
            return self.learned, model
        reduced = fit(self.design, several, self.blocks)
        return (self.learned, model) if reduced.confounded else (several, reduced)

    @cached_property
    def values(self) -> np.ndarray:
        """The scores of the model's runs."""
        return np.array([self.scores[name][seed] for name, seed in self.selected[0]])

    def estimate(self, sums: Mapping[Effect, float]) -> Numbers | None:
        return self.selected[1].estimate(self.values, sums)

    def ends(self, sums: Mapping[Effect, float]) -> dict[str, float | None]:
        """Return a weighted sum of coefficients with its 95 % interval. Unknown values are None."""
        numbers = self.estimate(sums)
        if numbers is None:
            return dict(estimate=None, low=None, high=None)
        return interval(*map(float, numbers))

    @cached_property
    def collapses(self) -> dict[Effect, dict[str, Any]]:
        """The collapsed runs at both levels of each main effect, and the p-value of the exact test."""
        collapsed = np.array([run not in self.learned for run in self.finished], bool)
        if not collapsed.any():
            return {}
        names = [name for name, _ in self.finished]
        entries = {}
        numbers = zip(*how_many_collapsed(self.design, names, collapsed))
        for effect, (high, low, p) in zip(self.design.main, numbers):
            entries[effect] = dict(collapsed=(int(high), int(low)), share=float(p))
        return entries

    def entries(self) -> list[dict[str, Any]]:
        """Return the effects that the study tests, corrected as one family, followed by the other pairs as another family."""
        asked = [effect for effect in self.design.distinct if effect in self.design.asked]
        others = [effect for effect in self.design.distinct if effect not in self.design.asked]
        return [*self._family(asked, asked=True), *self._family(others, asked=False)]

    def _family(self, effects: Terms, asked: bool) -> Iterator[dict[str, Any]]:
        if not effects:
            return
        numbers = [self.estimate({effect: 2.0}) for effect in effects]
        share = [self.collapses.get(effect, {}).get('share', math.nan) for effect in effects]
        columns = np.array([known or UNKNOWN for known in numbers], float).T
        decisions = verdicts(*columns, self.margin, share=np.array(share))
        for effect, known, decision in zip(effects, numbers, decisions):
            yield dict(
                name=title(effect),
                factors=effect,
                verdict=self._verdict(effect, known, str(decision)),
                asked=asked,
                **self.collapses.get(effect, {}),
                aliases=self.design.aliases(effect),
                **self.ends({effect: 2.0}),
            )

    def _verdict(
        self,
        effect: Effect,
        numbers: Numbers | None,
        decision: str,
    ) -> str:
        """Return the decision, or the reason why there is none."""
        if effect in self.collapses and decision == DIFFERS:
            return verdict_of(decision, None, by_counts=True)
        if numbers is None:
            return f'not estimable without {", ".join(self._rows_with(0))}'
        if self.collapses:
            return COLLAPSED
        estimate, error, _ = map(float, numbers)
        if not math.isnan(error):
            return verdict_of(decision, estimate)
        if not self.selected[1].freedom:
            return ONE_SEED
        if alone := self._rows_with(1):
            return f'not tested (one run of {", ".join(alone)})'
        return NO_SPREAD

    def _rows_with(self, count: int) -> list[str]:
        return [name for name in self.design.rows if self.counts[name] == count]


def how_many_collapsed(
    design: Design, names: Sequence[str], collapsed: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return how many runs collapsed at the second and at the first level of each main effect, and the p-value.

    Args:
        design: The design.
        names: The row of each run.
        collapsed: (..., runs); whether each run collapsed. Without collapsed runs, the p-value is NaN.
    """
    high = np.array([design.signs(effect, names) > 0 for effect in design.main])
    at_high, at_low = (collapsed.astype(int) @ level.T for level in (high, ~high))
    p = exact_test(at_high, high.sum(1), at_low, (~high).sum(1))
    any_collapsed = collapsed.any(-1, keepdims=True)
    return at_high, at_low, np.where(any_collapsed, p, math.nan)


def _seeds_are_blocks(rows: Sequence[Mapping], scores: Mapping[str, Mapping]) -> bool:
    """Return True if each seed means the same in all rows that have it, and a row has two seeds or more."""
    for seed in set().union(*scores.values()):
        first, *others = (row for row in rows if seed in scores[row['name']])
        if not all(same_start(row, first, seed) for row in others):
            return False
    return max(map(len, scores.values())) > 1
