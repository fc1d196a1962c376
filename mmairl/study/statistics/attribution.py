"""Compute the effects of a design's factors: main effects, interactions, and each factor's share of the total gain.

A design (`designs.py`) has factors with two levels each. Each row of the design is one combination of levels, trained with
several seeds. A linear model of the levels, coded as -1 and 1, is fitted to the scores of the runs. A main effect is the
mean change of the score from the first level of a factor to its second level, over all rows. An interaction of two factors
is half the difference between the effects of one factor at the second and at the first level of the other factor, as in Box,
Hunter and Hunter.

Standard errors come from the spread between runs of the same row. The residual of a run is its score minus the mean of its
row. Seeds are blocks if each seed gives all rows the same order of images and the same initial weights (`same_start`). The
effect of the run's seed is then subtracted from the residual as well. Each row has its own variance. If a row has a single
run, its variance is unknown. There are then no standard errors, so no effect is tested. The degrees of freedom of an
estimate are Satterthwaite's, but at most (n - 1) log2(R) / 2, where R is the number of rows and n is the smallest number of
runs in a row. Without this limit, tests find false effects too often: in a design with 16 rows of two runs, in which no
effect is real and the standard deviation of one row is 16 times that of the other rows, 9 % of the studies would have a
false effect.

If some rows have no runs, an effect is reported only if no other main effect or pairwise interaction contributes to it.
Collapsed runs, whose scores are far below those of the other runs, are excluded. If all runs of a row but one collapsed, the
remaining run is excluded, too, unless an effect cannot be estimated without it. If any run collapsed, the effects on the
mean score have no verdict. Instead, Fisher's exact test compares how many runs collapsed at the two levels of each factor.

The total gain is the score with all factors at the second level minus the score with all factors at the first level. A
factor is added by moving it to its second level. The share of a factor is the gain from adding it, averaged over all orders
in which the factors can be added (Shapley). In the linear model, a term with an odd number of factors
contributes twice its coefficient to the total gain, and its factors get equal parts of this contribution. A term with an
even number of factors contributes nothing. The share of a factor is therefore equal to its main effect, unless there are
interactions of three or more factors. Only a full factorial design can estimate these interactions.
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
Runs = Sequence[tuple[str, int]]  # the name of the row and the seed of each run
# A coefficient cannot be estimated if its estimate contains another coefficient with a weight above this limit.
SINGULAR = 1e-6
NO_FREEDOM = 1e-9
UNKNOWN = (math.nan,) * 3


@dataclass(frozen=True)
class Fit:
    """A linear model whose coefficients are weighted sums of the scores of runs.

    Args:
        terms: The main effects and interactions in the model.
        weights: (coefficients, runs) The weight of each run's score in each coefficient. The coefficients are the mean, those
            of the terms and, if seeds are blocks, those of all seeds except the first.
        residual: (runs, runs) The matrix that turns scores into residuals by subtracting the means of rows and, if seeds are
            blocks, the effects of seeds.
        rows: (runs, rows) Indicators: 1 if the run belongs to the row, else 0.
        freedom: Degrees of freedom of the residuals.
        confounded: The terms whose coefficients cannot be estimated.
    """

    terms: Terms
    weights: np.ndarray
    residual: np.ndarray
    rows: np.ndarray
    freedom: int
    confounded: frozenset[Effect]

    def variances(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the variance of a run's score in each row, with its degrees of freedom; both are NaN for a row with one run.

        Args:
            scores: (..., runs) The score of each run.
        """
        freedom = np.diag(self.residual) @ self.rows
        freedom = np.where(freedom > NO_FREEDOM, freedom, math.nan)
        squares = (scores @ self.residual) ** 2 @ self.rows
        return squares / freedom, freedom

    def estimate(self, scores: np.ndarray, sums: Mapping[Effect, float]) -> Numbers | None:
        """Return a weighted sum of coefficients, its standard error and its degrees of freedom.

        The standard error is sqrt(sum v_r w_r), where v_r is the variance of row r and w_r is the sum of the squared weights
        of its runs. The degrees of freedom are Satterthwaite's, error^4 / sum((v_r w_r)^2 / f_r), where f_r are the degrees
        of freedom of v_r. The module docstring explains their upper limit. Returns None if one of the terms cannot be
        estimated from the runs.

        Args:
            scores: (..., runs) The score of each run.
            sums: The weight of each term's coefficient in the sum.
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
    """Fit the linear model of a design to its runs.

    The model has all interactions if the design is a full factorial and each of its rows has a run. Otherwise, it has the
    effects of `Design.distinct`: the main effects and pairwise interactions, but only the first one of several effects that
    the rows cannot separate from each other.

    Args:
        design: The design.
        runs: The runs whose scores the model describes.
        blocks: Whether seeds are blocks, so that the model also has an effect for each seed.
    """
    if not runs:
        empty = np.zeros((0, 0))
        return Fit([], np.zeros((1, 0)), empty, empty, 0, frozenset(design.distinct))
    names, seeds = zip(*runs)
    rows = indicators(names)
    fixed = indicators(seeds)[:, 1:] if blocks else np.empty((len(runs), 0))
    complete = rows.shape[1] == 2 ** len(design.factors)
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
    """Return a matrix with a line for each item and a column for each distinct label: 1 if the item has the label, else 0."""
    distinct = list(dict.fromkeys(labels))
    return (np.array(labels)[:, None] == np.array(distinct)).astype(float)


def shares(factors: Sequence[str], terms: Terms) -> dict[str, dict[Effect, float]]:
    """Return, for each factor, the weights of the coefficients whose sum is the factor's share of the total gain.

    The weight is 2 / n for each term that contains the factor and has an odd number n of factors.
    """
    odd = [term for term in terms if len(term) % 2]
    by_factor = {}
    for factor in factors:
        by_factor[factor] = {term: 2 / len(term) for term in odd if factor in term}
    return by_factor


def attribute(study: Mapping[str, Any], metric: str, margin: float) -> dict[str, Any]:
    """Return the effects of a design's factors on one score, as study.json stores them.

    Args:
        study: The record of the study (the content of study.json).
        metric: Key of the score.
        margin: Effects that are smaller than the margin count as equivalent to no effect.
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
        # The total gain is the sum of all shares.
        gain=dict(factor='all factors', **found.ends(gain)),
        # Shares are exact only if the model has all interactions, including those of three or more factors.
        exact=len(model.terms) == 2 ** len(design.factors) - 1,
        # This is the standard deviation of a run's score within its row. If seeds are blocks, it excludes seed effects.
        spread=None if math.isnan(spread) else spread,
    )


def _names(runs: Iterable[tuple[str, int]]) -> list[str]:
    return [f'{name}, seed {seed}' for name, seed in runs]


@dataclass(frozen=True)
class DesignEffects:
    """The effects of a design's factors on one score, computed from the finished runs of its rows.

    Args:
        design: The design.
        rows: The rows of the design, as in study.json.
        scores: The score of each finished run, by row and seed.
        limits: For each row, the score below which a run has collapsed.
        margin: Effects that are smaller than the margin count as equivalent to no effect.
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
        """For each row, by name, the number of runs that have not collapsed."""
        return Counter(name for name, _ in self.learned)

    @cached_property
    def blocks(self) -> bool:
        return bool(self.learned) and _seeds_are_blocks(self.rows, self.scores)

    @cached_property
    def selected(self) -> tuple[list[tuple[str, int]], Fit]:
        """The runs that the model uses, and the fitted model.

        If all runs of a row but one collapsed, the remaining run is excluded, unless an effect cannot be estimated without
        it.
        """
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
        """The scores of the runs that the model uses."""
        return np.array([self.scores[name][seed] for name, seed in self.selected[0]])

    def estimate(self, sums: Mapping[Effect, float]) -> Numbers | None:
        return self.selected[1].estimate(self.values, sums)

    def ends(self, sums: Mapping[Effect, float]) -> dict[str, float | None]:
        """Return a weighted sum of coefficients with its 95 % interval. Numbers that cannot be computed are None."""
        numbers = self.estimate(sums)
        if numbers is None:
            return dict(estimate=None, low=None, high=None)
        return interval(*map(float, numbers))

    @cached_property
    def collapses(self) -> dict[Effect, dict[str, Any]]:
        """For each main effect, the result of `how_many_collapsed`; empty if no run collapsed.

        `collapsed` has the number of collapsed runs at the second level of the factor, then the number at its first level.
        `share` is the p-value of the exact test.
        """
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
        """Return the effects that the study tests, followed by the other pairwise interactions.

        Each of these two groups is a family of its own in Holm's correction.
        """
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
        """Return the verdict on an effect, or the reason why it has none."""
        if effect in self.collapses and decision == DIFFERS:
            return verdict_of(decision, None, by_counts=True)
        if numbers is None:
            absent = self._rows_with(0)
            return f'not estimable without {", ".join(absent)}' if absent else 'not estimable'
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
    """Count the collapsed runs at each level of each factor, and test whether runs collapse equally often at both levels.

    Args:
        design: The design.
        names: The row of each run.
        collapsed: (..., runs) Whether each run collapsed.

    Returns:
        For each factor, the number of collapsed runs at its second level, the number at its first level, and the p-value
            of Fisher's exact test. The p-value is NaN if no run collapsed.
    """
    high = np.array([design.signs(effect, names) > 0 for effect in design.main])
    at_high, at_low = (collapsed.astype(int) @ level.T for level in (high, ~high))
    p = exact_test(at_high, high.sum(1), at_low, (~high).sum(1))
    any_collapsed = collapsed.any(-1, keepdims=True)
    return at_high, at_low, np.where(any_collapsed, p, math.nan)


def _seeds_are_blocks(rows: Sequence[Mapping], scores: Mapping[str, Mapping]) -> bool:
    """Return True if some row has several seeds, and all runs with the same seed have the same start (`same_start`)."""
    for seed in set().union(*scores.values()):
        first, *others = (row for row in rows if seed in scores[row['name']])
        if not all(same_start(row, first, seed) for row in others):
            return False
    return max(map(len, scores.values())) > 1
