"""Test the claims of papers on the runs of studies.

A claim is a quotation with a test. A test consists of parts, each a contrast of row means (`mmairl.study.statistics`) with a
bound, and states that all or most parts hold. The claims of a paper are in `claims/PAPER.yaml`. The margins within which two
scores count as similar, and the scores that small scales measure in place of the papers' scores, are in `claims/scales.yaml`.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, Literal

from mmairl.evaluation.protocol import BASELINES
from mmairl.io import Declared, read_yaml
from mmairl.study.statistics.contrasts import LEVEL, Effect, contrast, holm, with_error
from mmairl.study.tasks import metric_of
from projects.papers.lines import parallel_lines

FOLDER = Path(__file__).parent / 'claims'
SUPPORTED = 'supported'
CONTRADICTED = 'contradicted'
INCONCLUSIVE = 'inconclusive'
NOT_RUN = 'not run'
MIXED = 'some runs of a row collapsed'
ONE_SCORE = 'the scale measures one score in place of both'
FULL_SCALE = 'in1k'
UNTRAINED = BASELINES['random']
# A row has collapsed if it gains less than this share of what a healthy row gains over an untrained network.
COLLAPSED_SHARE = 0.25
MOST_SEEDS = 1000
FLAT = 0.25  # the largest slope that counts as flat
Relation = Literal['more', 'less', 'similar', 'not_less', 'not_more']
Need = Literal['all', 'most']
Pair = tuple[str, str]
Term = tuple[float, str, str]  # a weight, a row and a score
Margins = Callable[[str], float]  # a function that maps a score to its margin


def higher_is_better(score: str) -> bool:
    return not ('alignment' in score or metric_of(score, score)['lower_is_better'])


@dataclass(frozen=True)
class Part:
    """A statement about a weighted sum of mean scores, after subtraction of `number`.

    The sum exceeds `least`, or is closer to zero than `margin`. The published number is the mean of `published_runs` runs.
    """

    terms: Sequence[Term]
    least: float = 0.0
    margin: float | None = None
    number: float = 0.0
    published_runs: int = 0

    def effect(self, score_of: Callable[[str, str], float | None]) -> float | None:
        """Return the sum for the scores that `score_of` returns for a row and a score; None if a score is missing."""
        values = [score_of(row, score) for _, row, score in self.terms]
        if None in values:
            return None
        return sum(weight * value for (weight, *_), value in zip(self.terms, values)) - self.number

    def holds(self, effect: float) -> bool:
        return effect > self.least if self.margin is None else abs(effect) <= self.margin


class Contrasts(Declared, frozen=True, kw_only=True):
    """Contrasts with one bound, for each of several scores. Exactly one of the first six keys selects rows.

    Args:
        gain: How much better the first row is than the second row.
        steps: The gain of each row over the previous row.
        after_first: The gain of each later row over the first row.
        pairs: The gain between any two of these rows.
        row: One row, compared with the published `numbers` of a method without a row.
        sum: The weight of each row.
        sum_scores: The score of each row in `sum`, if these differ.
        minus: Pairs whose gains are subtracted from the gain, one contrast for each pair.
        minus_scores: The gain of the same rows in these scores is subtracted.
        numbers: The published number of each score, which replaces `scores`.
        of: The method of the published numbers, and the table that prints them.
        published_runs: How many runs a published number is the mean of.
        relation: `more` (above `by`), `less` (below -`by`), `similar`, `not_less` or `not_more` (up to the margin).
        by: The threshold of `more` and `less`, or the margin of the other relations. The default margin is that of the score.
        raw: Whether a gain is the plain difference even if lower values of the score are better.
        need: Whether all or most of the contrasts must hold.
    """

    gain: Pair | None = None
    steps: tuple[str, ...] = ()
    after_first: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()
    row: str = ''
    sum: dict[str, float] = {}
    sum_scores: dict[str, str] = {}
    scores: tuple[str, ...] = ()
    minus: tuple[Pair, ...] = ()
    minus_scores: tuple[str, ...] = ()
    numbers: dict[str, float] = {}
    of: str = ''
    published_runs: int = 1
    relation: Relation = 'more'
    by: float | None = None
    raw: bool = False
    need: Need = 'all'

    def parts(self, margin: Margins) -> Iterator[Part]:
        for score in self.scores or self.numbers or [next(iter(self.sum_scores.values()))]:
            for terms in self._sums(score):
                yield self._bounded(terms, score, margin)

    def _sums(self, score: str) -> Iterator[list[Term]]:
        if self.row:
            yield self._terms(1.0, (self.row,), score)
        if self.sum:
            yield [
                (weight, row, self.sum_scores.get(row, score)) for row, weight in self.sum.items()
            ]
        for pair in self._pairs():
            gain = self._terms(1.0, pair, score)
            subtracted = [self._terms(-1.0, other, score) for other in self.minus]
            subtracted += [self._terms(-1.0, pair, other) for other in self.minus_scores]
            yield from (gain + other for other in subtracted) if subtracted else [gain]

    def _pairs(self) -> list[Pair]:
        steps = [(late, early) for early, late in pairwise(self.steps)]
        later = [(row, self.after_first[0]) for row in self.after_first[1:]]
        return [*([self.gain] if self.gain else []), *steps, *later, *combinations(self.pairs, 2)]

    def _terms(self, weight: float, rows: Sequence[str], score: str) -> list[Term]:
        if not self.raw and not higher_is_better(score):
            weight = -weight
        return [(weight * sign, row, score) for row, sign in zip(rows, (1.0, -1.0))]

    def _bounded(self, terms: list[Term], score: str, margin: Margins) -> Part:
        sign = -1.0 if self.relation in ('less', 'not_more') else 1.0
        better = 1.0 if self.raw or higher_is_better(score) else -1.0
        part = Part(
            [(sign * weight, *place) for weight, *place in terms],
            number=sign * better * self.numbers.get(score, 0.0),
            published_runs=self.published_runs if self.numbers else 0,
        )
        if self.relation in ('more', 'less'):
            return replace(part, least=self.by or 0.0)
        size = self.by or margin(score)
        return (
            replace(part, margin=size) if self.relation == 'similar' else replace(part, least=-size)
        )


class Level(Declared, frozen=True, kw_only=True):
    """The level of rows between an untrained network and a healthy row, which decides whether they collapse.

    Args:
        rows: The rows.
        healthy: A row that learns.
        scores: The scores.
        relation: `collapsed` (below a quarter of the healthy row's gain over an untrained network) or `learned` (above).
    """

    rows: tuple[str, ...]
    healthy: str
    scores: tuple[str, ...]
    relation: Literal['collapsed', 'learned'] = 'collapsed'
    need: Need = 'all'

    def parts(self, margin: Margins) -> Iterator[Part]:
        for score in self.scores:
            sign = -1.0 if (self.relation == 'collapsed') == higher_is_better(score) else 1.0
            for row in self.rows:
                levels = {row: 1.0, UNTRAINED: COLLAPSED_SHARE - 1, self.healthy: -COLLAPSED_SHARE}
                if row == self.healthy:
                    levels = {row: 1 - COLLAPSED_SHARE, UNTRAINED: COLLAPSED_SHARE - 1}
                yield Part([(sign * weight, name, score) for name, weight in levels.items()])


class Regression(Declared, frozen=True, kw_only=True):
    """Parallel lines of score `y` over score `x`: one slope, and one intercept for each group of rows.

    Args:
        x: The score on the x axis.
        y: The score on the y axis.
        groups: The rows of each group.
        slope: What the claim states about the slope: `rises`, `falls`, `flat` (at most a quarter point per point) or `any`.
        ranking: The groups in the claimed order of their intercepts, the highest first.
    """

    x: str
    y: str
    groups: dict[str, tuple[str, ...]]
    slope: Literal['rises', 'falls', 'flat', 'any'] = 'any'
    ranking: tuple[str, ...] = ()
    need: Need = 'all'

    def effects(self, runs: 'Runs') -> Iterator[tuple[str, Effect, Part]]:
        """Yield the name, the estimate and the bound of each quantity that the claim restricts."""
        lines = runs.lines(self.x, self.y, self.groups)
        if self.slope != 'any':
            sign = -1.0 if self.slope == 'falls' else 1.0
            bound = Part((), margin=FLAT if self.slope == 'flat' else None)
            yield f'slope of {self.y} over {self.x}', lines({'slope': sign}), bound
        for higher, lower in pairwise(self.ranking):
            name = f'{higher} − {lower}, {self.y} at equal {self.x}'
            yield name, lines({higher: 1.0, lower: -1.0}), Part(())


class Configs(Declared, frozen=True, kw_only=True):
    """A statement about configs, which needs no run: two rows differ only in the keys `only_in`."""

    rows: Pair
    only_in: tuple[str, ...]


class Test(Declared, frozen=True, kw_only=True):
    """Groups of statements. The claim holds if all groups hold or, with `need: most`, if more than half of them hold."""

    contrasts: tuple[Contrasts, ...] = ()
    levels: tuple[Level, ...] = ()
    regressions: tuple[Regression, ...] = ()
    configs: tuple[Configs, ...] = ()
    need: Need = 'all'

    def parts(self, margin: Margins) -> list[Part]:
        return [part for group in (*self.contrasts, *self.levels) for part in group.parts(margin)]


class Claim(Declared, frozen=True, kw_only=True):
    """One claim of a paper.

    Args:
        name: A name, by which other claims refer to this claim.
        quote: The words of the paper.
        where: The places in the paper that state the claim.
        study: The study in `configs/studies` that measures the claim; empty if no study does.
        test: The test; None if the claim cannot be tested.
        evidence: What the paper's numbers say, in words.
        published: The same as one word, if it does not follow from the published numbers of the study's rows.
        reading: How the test understands the quotation.
        why: Why the claim has no test.
        see: The names of related claims, such as the opposite claim of another paper.
    """

    name: str
    quote: str
    where: tuple[str, ...]
    study: str = ''
    test: Test | None = None
    evidence: str = ''
    published: Literal['holds', 'thin', 'partly', 'contradicts', 'drawn only', 'none', ''] = ''
    reading: str = ''
    why: str = ''
    see: tuple[str, ...] = ()


class Paper(Declared, frozen=True):
    """A paper with its claims."""

    title: str
    claims: tuple[Claim, ...]


class ScaleSettings(Declared, frozen=True):
    """Margins and stand-ins at one scale, with the reason for the margins."""

    reason: str
    margins: dict[str, float] = {}
    other: float | None = None
    stand_ins: dict[str, str] = {}


@cache
def papers() -> dict[str, Paper]:
    """Return the papers by the names of their files."""
    names = ('revisit_airl', 'byol', 'msbreg')
    return {name: read_yaml(FOLDER / f'{name}.yaml', Paper) for name in names}


@cache
def scales() -> dict[str, ScaleSettings]:
    return read_yaml(FOLDER / 'scales.yaml', dict[str, ScaleSettings])


@dataclass(frozen=True)
class Evidence:
    """One-sided p-values for and against a statement; both are 1 if it is not tested, and `reason` states why."""

    support: float = 1.0
    against: float = 1.0
    reason: str = ''

    @property
    def p(self) -> float:
        return min(1.0, 2 * min(self.support, self.against))


@dataclass(frozen=True)
class Runs:
    """The runs of a study at one scale.

    Args:
        scores: The scores of each finished run: row → score → seed → value.
        scale: The name of the scale.
        collapsed: The seeds of collapsed runs by row.
        paired: Returns whether the runs of rows, which have a score, are paired by seed.
        differences: Returns the config keys in which two rows differ.
        level: The error rate, which planned analyses of the study share.
    """

    scores: Mapping[str, Mapping[str, Mapping[int, float]]]
    scale: str = FULL_SCALE
    collapsed: Mapping[str, set[int]] = field(default_factory=dict)
    paired: Callable[[Sequence[str], str], bool] = lambda rows, score: False
    differences: Callable[[str, str], Sequence[str]] = lambda one, other: ()
    level: float = LEVEL

    @property
    def settings(self) -> ScaleSettings:
        return scales().get(self.scale, ScaleSettings(''))

    def measured(self, score: str) -> str:
        """Return the score that this scale measures in place of `score`, usually the score itself."""
        return self.settings.stand_ins.get(score, score)

    def margin(self, score: str) -> float:
        return self.settings.margins.get(self.measured(score), self.settings.other or math.nan)

    def mean(self, row: str, score: str) -> float | None:
        values = self.scores.get(row, {}).get(self.measured(score), {}).values()
        return sum(values) / len(values) if values else None

    def effect(self, part: Part) -> Effect:
        """Return the estimate of a part's sum with its error, including the error of a published number."""
        weights = _by_row(part, self.measured)
        if not weights:
            return Effect(verdict=ONE_SCORE)
        if any(self._is_mixed(row) for row in weights):
            return Effect(verdict=MIXED)
        sums = {row: self._weighted(row, by_score) for row, by_score in weights.items()}
        if not all(sums.values()):
            return Effect(verdict=NOT_RUN)
        first = next(iter(next(iter(weights.values()))))
        paired = self.paired([*sums], first)
        effect = contrast(dict.fromkeys(sums, 1.0), sums, paired, level=self.level)
        if part.published_runs and effect.error is not None:
            longer = math.sqrt(1 + (effect.freedom + 1) / part.published_runs)
            effect = with_error(effect, longer * effect.error, self.level)
        if effect.estimate is None:
            return replace(effect, verdict=NOT_RUN)
        return replace(effect, estimate=effect.estimate - part.number)

    def _weighted(self, row: str, weights: Mapping[str, float]) -> dict[int, float]:
        by_score = [self.scores.get(row, {}).get(score, {}) for score in weights]
        seeds = set.intersection(*map(set, by_score))
        return {
            seed: sum(w * values[seed] for w, values in zip(weights.values(), by_score))
            for seed in seeds
        }

    def _is_mixed(self, row: str) -> bool:
        seeds = set().union(*self.scores.get(row, {}).values())
        return 0 < len(seeds & self.collapsed.get(row, set())) < len(seeds)

    def lines(
        self, x: str, y: str, groups: Mapping[str, Sequence[str]]
    ) -> Callable[[Mapping[str, float]], Effect]:
        """Fit parallel lines to the runs, and return a function that estimates a weighted sum of their coefficients."""
        x, y = self.measured(x), self.measured(y)
        if x == y:
            return lambda weights: Effect(verdict=ONE_SCORE)
        points = {}
        for group, rows in groups.items():
            found = [self._points(row, x, y) for row in rows]
            points[group] = [point for point in found if point]
        return lambda weights: parallel_lines(points, weights)

    def _points(self, row: str, x: str, y: str) -> list[tuple[float, float]]:
        scores = self.scores.get(row, {})
        across = scores.get(x, {})
        up = scores.get(y, {})
        return [(across[seed], up[seed]) for seed in sorted(across.keys() & up.keys())]


def _by_row(part: Part, measured: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """Return the weights of each row's measured scores, without weights that cancel."""
    weights: dict[str, dict[str, float]] = {}
    for weight, row, score in part.terms:
        by_score = weights.setdefault(row, {})
        by_score[measured(score)] = by_score.get(measured(score), 0.0) + weight
    kept = {row: {s: w for s, w in by_score.items() if w} for row, by_score in weights.items()}
    return {row: by_score for row, by_score in kept.items() if by_score}


def test_part(effect: Effect, part: Part) -> Evidence:
    """Return the evidence for and against a part, given the estimate of its sum."""
    if not effect.tested:
        return Evidence(reason=effect.verdict)
    if math.isnan(part.least + (part.margin or 0.0)):
        return Evidence(reason='the scale has no margin for this score')
    if part.margin is None:
        return Evidence(effect.p_above(part.least), effect.p_below(part.least))
    outside = min(effect.p_above(part.margin), effect.p_below(-part.margin))
    return Evidence(effect.p_within(part.margin), min(1.0, 2 * outside))


def combine(parts: Sequence[Evidence], need: str) -> Evidence:
    """Return the evidence for the statement that all or most parts hold.

    Most parts are tested by a partial conjunction test (Benjamini and Heller, 2008). A part without a test never counts
    for or against the claim, so a claim is not decided by a fraction of its parts unless this fraction suffices.
    """
    reasons = '; '.join(dict.fromkeys(part.reason for part in parts if part.reason))
    needed = len(parts) if need == 'all' else len(parts) // 2 + 1
    support = _at_least(needed, [part.support for part in parts])
    against = _at_least(len(parts) - needed + 1, [part.against for part in parts])
    return Evidence(support, against, reasons)


def _at_least(count: int, p: Sequence[float]) -> float:
    return min(1.0, (len(p) - count + 1) * sorted(p)[count - 1])


def group_effects(
    group: Contrasts | Level | Regression, runs: Runs
) -> list[tuple[str, Effect, Part]]:
    """Return each part with its name and estimate. Parts that a scale measures by the same scores count once."""
    if isinstance(group, Regression):
        return list(group.effects(runs))
    parts = {}
    for part in group.parts(runs.margin):
        key = repr((_by_row(part, runs.measured), part.least, part.margin, part.number))
        parts.setdefault(key, part)
    return [(name_of(part, runs), runs.effect(part), part) for part in parts.values()]


def effects_of(test: Test, runs: Runs) -> list[tuple[str, Effect, Part]]:
    groups = (*test.contrasts, *test.levels, *test.regressions)
    return [entry for group in groups for entry in group_effects(group, runs)]


def name_of(part: Part, runs: Runs) -> str:
    """Return how a part's sum is computed from scores, such as '“MoCo v2+” − “BYOL”, linear'."""
    scores = list(dict.fromkeys(runs.measured(score) for *_, score in part.terms))
    terms = []
    for weight, row, score in part.terms:
        factor = '' if abs(weight) == 1 else f'{abs(weight):g} × '
        shown = f' ({runs.measured(score)})' if len(scores) > 1 else ''
        terms.append(f'{"−" if weight < 0 else "+"} {factor}“{row}”{shown}')
    if part.published_runs:
        terms.append(f'{"−" if part.number > 0 else "+"} {abs(part.number):g} (published)')
    return ' '.join(terms).removeprefix('+ ') + ('' if len(scores) > 1 else f', {scores[0]}')


def evidence_of(test: Test, runs: Runs, seeds: int | None = None) -> Evidence:
    """Return the evidence for a claim or, with `seeds`, the evidence that is expected with this number of seeds."""
    groups = []
    for group in (*test.contrasts, *test.levels, *test.regressions):
        if runs.scale != FULL_SCALE and getattr(group, 'numbers', None):
            groups.append(
                Evidence(reason='published numbers are comparable only with runs at full size')
            )
            continue
        parts = []
        for _, effect, part in group_effects(group, runs):
            parts.append(test_part(effect if seeds is None else with_seeds(effect, seeds), part))
        groups.append(combine(parts, group.need))
    for group in test.configs:
        keys = runs.differences(*group.rows)
        inside = all(
            f'{key}.'.startswith(tuple(f'{own}.' for own in group.only_in)) for key in keys
        )
        groups.append(Evidence(support=0.0) if inside else Evidence(against=0.0))
    return combine(groups, test.need)


def with_seeds(effect: Effect, seeds: int) -> Effect:
    """Return the effect that another number of seeds would give with the same estimate and spread."""
    if not effect.tested:
        return effect
    error = effect.error * math.sqrt((effect.freedom + 1) / seeds)
    return replace(effect, error=error, freedom=seeds - 1.0)


def judge(claims: Sequence[Claim], runs: Runs) -> list[dict[str, Any]]:
    """Return a record of each claim with its verdict. Holm's correction covers the claims of a study that have evidence."""
    evidence = [evidence_of(claim.test, runs) for claim in claims]
    tested = [one.p for one in evidence if one.p < 1]
    adjusted = dict(zip((id(one) for one in evidence if one.p < 1), holm(tested)))
    judged = []
    for claim, one in zip(claims, evidence):
        decided = adjusted.get(id(one), 1.0) < runs.level
        effects = effects_of(claim.test, runs)
        has_runs = any(e.estimate is not None or e.verdict == MIXED for _, e, _ in effects)
        verdict = INCONCLUSIVE if has_runs else NOT_RUN
        if decided:
            verdict = SUPPORTED if one.support < one.against else CONTRADICTED
        needed = None if decided or not one.p < 1 else seeds_needed(claim.test, runs, len(tested))
        judged.append(
            dict(
                claim=claim,
                verdict=verdict,
                reason='' if decided else one.reason,
                effects=effects,
                seeds_needed=needed,
            )
        )
    return judged


def seeds_needed(test: Test, runs: Runs, claims: int) -> int | None:
    """Return how many seeds would decide a claim with the same estimates and spreads; None if more than 1000."""
    seeds = 2
    while seeds <= MOST_SEEDS:
        if evidence_of(test, runs, seeds).p < runs.level / claims:
            return seeds
        seeds += max(1, seeds // 20)
    return None


def published_verdict(claim: Claim, printed: Callable[[str, str], float | None]) -> str:
    """Return what the paper's own numbers say: holds, thin (within the margin), partly, contradicts, or none."""
    if claim.published or claim.test is None:
        return claim.published or 'none'
    margin = Runs({}).margin
    groups = []
    gaps = []
    for group in (*claim.test.contrasts, *claim.test.levels):
        effects = [(part, part.effect(printed)) for part in group.parts(margin)]
        held = [part.holds(effect) for part, effect in effects if effect is not None]
        if held:
            groups.append(sum(held) / len(held) > 0.5 if group.need == 'most' else all(held))
            groups += [True] * (not groups[-1] and any(held))
        for part, effect in effects:
            if effect is not None and part.margin is None:
                gaps.append(abs(effect - part.least) / margin(part.terms[0][2]))
    if not groups:
        return 'none'
    if not all(groups):
        return 'partly' if any(groups) else 'contradicts'
    return 'thin' if min(gaps, default=1.0) < 1 else 'holds'
