"""The claims of a paper: its words, the contrast that tests them, and the verdict on the runs of a study.

A study lists the claims that its rows can test. `configs/studies/_claims.yaml` has what all studies share: the margins within
which scores count as similar, fixed before any result is read, and the scores that stand in for the papers' at small scales.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, pairwise
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from mmairl.config import home
from mmairl.errors import UserError
from mmairl.io import Declared, read_yaml
from mmairl.study.statistics import claim_tests
from mmairl.study.statistics.claim_tests import (
    INCONCLUSIVE,
    MOST_SEEDS,
    NOT_RUN,
    Contrast,
    Evidence,
)
from mmairl.study.statistics.compare_rows import (
    LEVEL,
    limits_by_row,
    same_start,
    scores_by_seed,
)

ONE_SEED = 'one seed'
COLLAPSED = 'collapsed runs'
NO_SPREAD = 'no spread'
FULL_SCALE = 'in1k'
GRAM = 5  # words of a quotation that are looked up together
LOWER_IS_BETTER = ('nyuv2_rms', 'nyuv2_rel', 'alignment', 'uniformity')

Names = Annotated[tuple[str, ...], Meta(min_length=1)]
Two = Annotated[tuple[str, ...], Meta(min_length=2, max_length=2)]
Three = Annotated[tuple[str, ...], Meta(min_length=3)]
Margin = Annotated[float, Meta(gt=0)]
Need = Literal['all', 'most']  # of a claim's parts
Known = Callable[[str, str], float | None]  # the number of a row by a score


Weights = dict[str, dict[str, float]]  # by row and score


class ClaimPart(NamedTuple):
    """A weighted sum of scores of rows, which is claimed to exceed `least`, or to be within `margin` of zero."""

    weights: Weights
    least: float = 0.0
    margin: float | None = None
    offset: float = 0.0

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score for scores in self.weights.values() for score in scores))

    def effect(self, known: Known) -> float | None:
        """Return the sum for known numbers, such as a paper's; None if one is missing."""
        total = -self.offset
        for row, scores in self.weights.items():
            for score, weight in scores.items():
                number = known(row, score)
                if number is None:
                    return None
                total += weight * number
        return total


class Form(Declared, frozen=True, tag_field='form'):
    """Base of the forms of a claim."""

    @property
    def rows(self) -> tuple[str, ...]:
        """Every row that the claim names."""
        return tuple(dict.fromkeys(row for part in self.parts(_unit) for row in part.weights))

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        raise NotImplementedError

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        """Return the evidence of the runs, or that expected with another number of seeds."""
        most = getattr(self, 'need', 'all') == 'most'
        combine = claim_tests.most_hold if most else claim_tests.all_hold
        return combine(runs.test_all(self.parts(runs.margin), seeds))


def _unit(score: str) -> float:
    return 1.0


def _gain(one: str, other: str, score: str, weight: float = 1.0) -> Weights:
    """Return the weights of how much better one row is than another."""
    sign = -weight if score in LOWER_IS_BETTER else weight
    return {one: {score: sign}, other: {score: -sign}}


def _sum(*parts: Weights) -> Weights:
    total: Weights = {}
    for part in parts:
        for row, scores in part.items():
            for score, weight in scores.items():
                known = total.setdefault(row, {})
                known[score] = known.get(score, 0.0) + weight
    return total


def _difference(one: str, other: str, score: str, **claimed: float) -> ClaimPart:
    return ClaimPart(_gain(one, other, score), **claimed)


class _Scored(Form, frozen=True):
    scores: Names
    need: Need = 'all'


class Difference(_Scored, frozen=True, tag='difference', kw_only=True):
    """`better` scores better than `than`, by more than `at_least` points."""

    better: str
    than: str
    at_least: float = 0.0

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [
            _difference(self.better, self.than, score, least=self.at_least) for score in self.scores
        ]


class Similar(_Scored, frozen=True, tag='equivalence', kw_only=True):
    """All pairs of rows are within the margin of each score."""

    of: Annotated[tuple[str, ...], Meta(min_length=2)]
    margin: Margin | None = None

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [
            _difference(one, other, score, margin=self.margin or margin(score))
            for score in self.scores
            for one, other in combinations(self.of, 2)
        ]


class NotWorse(_Scored, frozen=True, tag='not_worse', kw_only=True):
    """`row` is at most the margin worse than `than`."""

    row: str
    than: str
    margin: Margin | None = None

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [
            _difference(self.row, self.than, score, least=-(self.margin or margin(score)))
            for score in self.scores
        ]


class Interaction(_Scored, frozen=True, tag='interaction', kw_only=True):
    """The gain of one pair of rows (a over b) compared with that of another pair, or with its own in other scores.

    `similar` claims that the gains are within the margin, and `not_larger` that the first exceeds the second by at most the
    margin.
    """

    gain: Two
    than: Two | None = None
    than_scores: tuple[str, ...] = ()
    relation: Literal['larger', 'similar', 'not_larger'] = 'larger'

    def __post_init__(self) -> None:
        if not self.than and not self.than_scores:
            raise UserError(
                'interaction: nothing to compare the gain with; set `than` or `than_scores`',
                code='claim-interaction',
            )

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        parts = []
        for score in self.scores:
            for other in self.than_scores or (score,):
                first = _gain(*self.gain, score)
                second = _gain(*(self.than or self.gain), other, -1.0)
                parts.append(self._claimed(_sum(first, second), margin(score)))
        return parts

    def _claimed(self, weights: Weights, margin: float) -> ClaimPart:
        if self.relation == 'similar':
            return ClaimPart(weights, margin=margin)
        if self.relation == 'larger':
            return ClaimPart(weights)
        opposite = {
            row: {score: -weight for score, weight in scores.items()}
            for row, scores in weights.items()
        }
        return ClaimPart(opposite, least=-margin)


class Largest(_Scored, frozen=True, tag='largest', kw_only=True):
    """The difference of one pair exceeds that of every other pair."""

    pair: Two
    among: Annotated[tuple[Two, ...], Meta(min_length=1)]

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [
            ClaimPart(_sum(_gain(*self.pair, score), _gain(*other, score, -1.0)))
            for score in self.scores
            for other in self.among
        ]


class Trend(_Scored, frozen=True, tag='trend', kw_only=True):
    """Ordered rows rise or fall step by step, or reach a plateau, or no longer gain, after the row `after`."""

    over: Three
    shape: Literal['rises', 'falls', 'plateau', 'no_gain']
    after: str = ''

    def __post_init__(self) -> None:
        if self.after and self.after not in self.over:
            raise UserError(
                f"trend: `after` is not among its rows ('{self.after}')", code='claim-row'
            )

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        rows = self.over[self.over.index(self.after) if self.after else 0 :]
        return [part for score in self.scores for part in self._of(rows, score, margin)]

    def _of(self, rows: Sequence[str], score: str, margin: Callable) -> Iterator[ClaimPart]:
        if self.shape in ('rises', 'falls'):
            for early, late in pairwise(rows):
                pair = (late, early) if self.shape == 'rises' else (early, late)
                yield _difference(*pair, score)
            return
        for late in rows[1:]:
            if self.shape == 'plateau':
                yield _difference(late, rows[0], score, margin=margin(score))
            else:
                yield _difference(rows[0], late, score, least=-margin(score))


class Property(_Scored, frozen=True, tag='property', kw_only=True):
    """A measured quantity, such as a norm, is larger in one row than in another, whichever is better."""

    larger: str
    than: str
    at_least: float = 0.0

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [
            ClaimPart({self.larger: {score: 1.0}, self.than: {score: -1.0}}, least=self.at_least)
            for score in self.scores
        ]


class Rival(Form, frozen=True, tag='rival', kw_only=True):
    """A row scores better than published numbers that have no row, or as good (`similar`), or not worse than the margin."""

    row: str
    numbers: dict[str, float]  # by score
    of: str  # whose numbers they are, and where they are printed
    relation: Literal['better', 'similar', 'not_worse', 'worse'] = 'better'
    need: Need = 'all'

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(self.numbers)

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        parts = []
        for score, number in self.numbers.items():
            sign = -1.0 if (score in LOWER_IS_BETTER) != (self.relation == 'worse') else 1.0
            part = ClaimPart({self.row: {score: sign}}, offset=sign * number)
            if self.relation == 'similar':
                part = part._replace(margin=margin(score))
            if self.relation == 'not_worse':
                part = part._replace(least=-margin(score))
            parts.append(part)
        return parts


class Regression(Form, frozen=True, tag='regression', kw_only=True):
    """Over models, `y` rises with `x` with one slope for all groups; `ranking` orders the groups at equal `x`, best first.

    A slope is `none` if it is within `flat` points of `y` per point of `x`.
    """

    x: str
    y: str
    groups: dict[str, Names]
    slope: Literal['rises', 'falls', 'none', 'any'] = 'rises'
    flat: Margin = 0.25
    ranking: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(row for rows in self.groups.values() for row in rows)

    @property
    def scores(self) -> tuple[str, ...]:
        return (self.x, self.y)

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return []

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        x, y, labels = runs.points(self.groups, self.x, self.y)
        if not len(x):
            return Evidence(reason=NOT_RUN)
        tests = []
        if self.slope != 'any':
            sign = -1.0 if self.slope == 'falls' else 1.0
            contrast = claim_tests.common_slope(x, sign * y, labels)
            margin = self.flat if self.slope == 'none' else None
            tests.append(_tested(contrast, ClaimPart({}, margin=margin)))
        names = list(self.groups)
        places = [names.index(name) for name in self.ranking]
        for higher, lower in pairwise(places):
            contrast = claim_tests.intercept_difference(x, y, labels, higher, lower)
            tests.append(_tested(contrast, ClaimPart({})))
        return claim_tests.all_hold(tests)


class Collapse(Form, frozen=True, tag='collapse', kw_only=True):
    """Most runs of these rows collapse, or with `avoided` most do not."""

    of: Names
    avoided: bool = False
    scores: Names

    @property
    def rows(self) -> tuple[str, ...]:
        return self.of

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return []

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        parts = []
        for score in self.scores:
            for row in self.of:
                collapsed, count = runs.collapsed(row, score)
                if not count:
                    parts.append(Evidence(reason=NOT_RUN))
                    continue
                scaled = seeds or count
                events = round(collapsed * scaled / count)
                parts.append(claim_tests.collapse_rate(events, scaled, not self.avoided))
        return claim_tests.all_hold(parts)


class Every(Form, frozen=True, tag='all', kw_only=True):
    """All of several claims hold."""

    of: Annotated[tuple['Test', ...], Meta(min_length=2)]

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return [part for test in self.of for part in test.parts(margin)]

    @property
    def rows(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row for test in self.of for row in test.rows))

    @property
    def scores(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(score for test in self.of for score in test.scores))

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        return claim_tests.all_hold([test.evidence(runs, seeds) for test in self.of])


class Majority(Every, frozen=True, tag='most', kw_only=True):
    """More than half of several claims hold."""

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        return claim_tests.most_hold([test.evidence(runs, seeds) for test in self.of])


class OnlyDiffer(Form, frozen=True, tag='configs', kw_only=True):
    """The configs of two rows differ only in these keys; no training is needed."""

    of: Two
    only_in: Names

    @property
    def rows(self) -> tuple[str, ...]:
        return self.of

    @property
    def scores(self) -> tuple[str, ...]:
        return ()

    def parts(self, margin: Callable[[str], float]) -> list[ClaimPart]:
        return []

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        keys = runs.differing_keys(*self.of)
        if keys is None:
            return Evidence(reason=NOT_RUN)
        holds = all(any(_below(key, prefix) for prefix in self.only_in) for key in keys)
        return Evidence(support=0.0) if holds else Evidence(against=0.0)


def _below(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f'{prefix}.')


Test = (
    Difference
    | Similar
    | NotWorse
    | Interaction
    | Largest
    | Trend
    | Property
    | Rival
    | Regression
    | Collapse
    | Every
    | Majority
    | OnlyDiffer
)


class Claim(Declared, frozen=True, kw_only=True):
    """One claim of a paper.

    Args:
        name: Short name, unique over all studies, by which other claims link to it.
        quote: The paper's words, 5 to 25 of them.
        paper: Key of the paper in `configs/studies/_claims.yaml`.
        where: Every place where it is stated, such as 'Sec. 4.1' or 'Tab. 2'.
        test: The contrast that tests it.
        published: Whether the paper's own numbers support the words.
        evidence: The published numbers, if they are not those of the rows.
        reading: What the test takes the words to mean, if this is a choice.
        see: Names of related claims, for example of a paper that states the opposite.
    """

    name: str
    quote: str
    paper: str
    where: Names
    test: Test
    published: Literal['holds', 'thin', 'partly', 'contradicts', 'drawn only', 'none']
    evidence: str = ''
    reading: str = ''
    see: tuple[str, ...] = ()


class SourcePaper(Declared, frozen=True):
    """A paper with claims: its title, its places as patterns, and the hashes of its word sequences."""

    title: str
    places: Names


class ScaleMargins(Declared, frozen=True):
    """Margins of a scale: by score, the one of all other scores, and the reason for them."""

    reason: str
    margins: dict[str, Margin]
    other: Margin | None = None
    stand_ins: dict[str, str] = {}  # score of the papers: score of this scale


class Untested(Declared, frozen=True):
    """A claim that no run can test, and the reason."""

    paper: str
    where: str
    quote: str
    why: str


class Shared(Declared, frozen=True):
    """The content of `configs/studies/_claims.yaml`."""

    papers: dict[str, SourcePaper]
    scales: dict[str, ScaleMargins]
    untested: tuple[Untested, ...] = ()


@cache
def shared_claims() -> Shared:
    return read_yaml(home() / 'configs/studies/_claims.yaml', Shared)


@cache
def _hashes(paper: str) -> np.ndarray:
    return np.load(home() / f'configs/studies/_published/{paper}_words.npy')


def word_hashes(text: str) -> np.ndarray:
    """Return a hash of each sequence of five words of a text, so that quotations can be checked without the text."""
    words = re.findall(r'[a-z0-9]+', text.lower())
    grams = [' '.join(words[place : place + GRAM]) for place in range(len(words) - GRAM + 1)]
    digests = [hashlib.sha256(gram.encode()).digest()[:4] for gram in grams]
    return np.array([int.from_bytes(digest) for digest in digests], np.uint32)


def check_claims(claims: Sequence[Claim], rows: Sequence[str], scores: Sequence[str]) -> None:
    """Raise unless each claim names known rows, scores and places, and quotes its paper.

    Args:
        claims: The claims of a study.
        rows: Names of the study's rows.
        scores: Scores that the study measures at full size.
    """
    for claim in claims:
        _require_known(claim.name, 'row', claim.test.rows, rows)
        _require_known(claim.name, 'score', claim.test.scores, scores)
        _require_known(claim.name, 'paper', [claim.paper], [*shared_claims().papers])
        patterns = shared_claims().papers[claim.paper].places
        for place in claim.where:
            if not any(re.fullmatch(pattern, place) for pattern in patterns):
                raise UserError(
                    f"claim '{claim.name}': the paper has no such place ('{place}'); write it like {patterns[0]}",
                    code='claim-place',
                )
        words = len(re.findall(r'[a-z0-9]+', claim.quote.lower()))
        if not GRAM <= words <= 25:
            raise UserError(
                f"claim '{claim.name}': a quotation has 5 to 25 words ({words}); shorten or extend it",
                code='claim-quote-length',
            )
        if not np.isin(word_hashes(claim.quote), _hashes(claim.paper)).all():
            raise UserError(
                f"claim '{claim.name}': these words are not in the paper ('{claim.quote}'); quote them exactly",
                code='claim-quote',
            )


def _require_known(claim: str, kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in known]:
        raise UserError(
            f"claim '{claim}': unknown {kind} ('{unknown[0]}'); expected one of {', '.join(known)}",
            code=f'claim-{kind}',
        )


@dataclass(frozen=True)
class StudyRuns:
    """The runs of a study's record, as claims read them.

    Args:
        record: The record, study.json.
        scale: Name of its scale.
        differences: The keys in which each pair of rows differs, if known.
    """

    record: Mapping[str, Any]
    scale: str
    differences: Callable[[str, str], Sequence[str] | None] = lambda one, other: None

    @property
    def stand_ins(self) -> dict[str, str]:
        known = shared_claims().scales.get(self.scale)
        return known.stand_ins if known else {}

    def measured(self, score: str) -> str | None:
        """Return the score of this scale that stands for a score of the papers; None if there is none."""
        keys = [metric['key'] for metric in self.record['metrics']]
        name = self.stand_ins.get(score, score)
        return name if name in keys else None

    def margin(self, score: str) -> float:
        known = shared_claims().scales.get(self.scale)
        margin = known and known.margins.get(self.measured(score) or score, known.other)
        return margin or math.nan

    def test_all(self, parts: Sequence[ClaimPart], seeds: int | None) -> list[Evidence]:
        """Test each part. At small scales, scores that nothing stands in for are left out."""
        measured = [part for part in parts if all(map(self.measured, part.scores))]
        if measured and self.scale != FULL_SCALE:
            parts = measured
        return [self.test(part, seeds) for part in parts]

    def test(self, part: ClaimPart, seeds: int | None) -> Evidence:
        rows = self._rows(part.weights)
        if len(rows) < len(part.weights) or not all(map(self.measured, part.scores)):
            return Evidence(reason=NOT_RUN)
        sums = []
        for row, weights in zip(rows, part.weights.values()):
            by_score = [scores_by_seed(row, self.measured(score)) for score in weights]
            shared_seeds = set.intersection(*map(set, by_score))
            if not shared_seeds:
                return Evidence(reason=NOT_RUN)
            if any(self.collapsed(row['name'], score)[0] for score in weights):
                return Evidence(reason=COLLAPSED)
            sums.append(
                {
                    seed: sum(w * scores[seed] for w, scores in zip(weights.values(), by_score))
                    for seed in shared_seeds
                }
            )
        seeds_of_any = sorted(set().union(*sums))
        values = np.array([[row.get(seed, math.nan) for seed in seeds_of_any] for row in sums])
        contrast = claim_tests.row_contrast(values, np.ones(len(rows)), self._blocks(rows, sums))
        return _tested(contrast, part, seeds)

    def _rows(self, names: Sequence[str]) -> list[Mapping[str, Any]]:
        known = {row['name']: row for row in self.record['rows']}
        return [known[name] for name in names if name in known]

    @staticmethod
    def _blocks(rows: Sequence[Mapping], by_seed: Sequence[Mapping[int, float]]) -> bool:
        seeds = set.intersection(*(set(scores) for scores in by_seed))
        others = rows[1:]
        return len(seeds) > 1 and all(
            same_start(rows[0], other, seed) for other in others for seed in seeds
        )

    def collapsed(self, row: str, score: str) -> tuple[int, int]:
        """Return how many runs of a row collapsed, and how many there are."""
        measured = self.measured(score)
        rows = self._rows([row])
        if measured is None or not rows:
            return 0, 0
        limit = limits_by_row(self.record, measured).get(row, -math.inf)
        scores = scores_by_seed(rows[0], measured).values()
        return sum(score < limit for score in scores), len(scores)

    def points(
        self, groups: Mapping[str, Sequence[str]], x: str, y: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean scores of each row and the index of its group."""
        keys = self.measured(x), self.measured(y)
        points = []
        for place, names in enumerate(groups.values()):
            for row in self._rows(names):
                means = [np.mean([*scores_by_seed(row, key).values()] or math.nan) for key in keys]
                if not any(map(math.isnan, means)):
                    points.append((*means, place))
        table = np.array(points).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(int)

    def mean(self, row: str, score: str) -> float | None:
        """Return the mean score of a row, all of its runs included."""
        measured = self.measured(score)
        scores = (
            [*scores_by_seed(self._rows([row])[0], measured).values()]
            if measured and self._rows([row])
            else []
        )
        return float(np.mean(scores)) if scores else None

    def differing_keys(self, one: str, other: str) -> Sequence[str] | None:
        return self.differences(one, other)


def _tested(contrast: Contrast, part: ClaimPart, seeds: int | None = None) -> Evidence:
    if contrast.seeds < 2:
        return Evidence(reason=ONE_SEED)
    if math.isnan(contrast.error):
        return Evidence(reason=NO_SPREAD)
    if math.isnan(part.least) or (part.margin is not None and math.isnan(part.margin)):
        return Evidence(reason=f'no margin for {", ".join(part.scores)}')
    if seeds:
        contrast = contrast.at(seeds)
    shifted = contrast.shifted(-part.offset)
    if part.margin is None:
        return claim_tests.above(shifted, part.least)
    return claim_tests.within(shifted, part.margin)


def judge(claims: Sequence[Claim], runs: StudyRuns, printed: Known) -> list[dict[str, Any]]:
    """Return the verdict on each claim of a study, tested as one family.

    Args:
        claims: The claims.
        runs: The study's runs.
        printed: The papers' number of a row by a score.
    """
    evidence = [claim.test.evidence(runs) for claim in claims]
    verdicts = claim_tests.family_verdicts(evidence)
    judged = []
    for claim, one, verdict in zip(claims, evidence, verdicts):
        if set(one.reason.split('; ')) == {NOT_RUN}:
            verdict = NOT_RUN
        entry = dict(
            name=claim.name,
            quote=claim.quote,
            paper=shared_claims().papers[claim.paper].title,
            where=list(claim.where),
            verdict=verdict,
            reason=one.reason if verdict in (INCONCLUSIVE, NOT_RUN) else '',
            published=claim.published,
            evidence=claim.evidence,
            reading=claim.reading,
            see=list(claim.see),
            p=one.p,
            parts=list(_described_parts(claim.test, runs, printed)),
            stand_ins={
                score: runs.measured(score)
                for score in claim.test.scores
                if runs.measured(score) not in (score, None)
            },
        )
        if verdict == INCONCLUSIVE and not one.reason:
            entry['seeds_needed'] = seeds_needed(claim.test, runs, len(claims))
        judged.append(entry)
    return judged


def _described_parts(test: Test, runs: StudyRuns, printed: Known) -> Iterator[dict[str, Any]]:
    for part in test.parts(runs.margin):
        yield dict(
            weights=part.weights,
            published=part.effect(printed),
            measured=part.effect(runs.mean),
            margin=_known(part.margin),
            least=_known(part.least),
        )


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def seeds_needed(test: Test, runs: StudyRuns, claims: int) -> int | None:
    """Return the seeds per row that would decide a claim if estimates and spreads stayed; None for more than MOST_SEEDS."""
    seeds = 2
    while seeds <= MOST_SEEDS:
        if test.evidence(runs, seeds).p < LEVEL / claims:
            return seeds
        seeds += max(1, seeds // 20)
    return None
