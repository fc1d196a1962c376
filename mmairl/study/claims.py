"""Test the claims of papers on the runs of a study.

A row of a study is one configuration, usually trained with several seeds. A study lists the claims that its rows can test.
A claim consists of a quotation from a paper and a test, which compares scores of rows. The verdict states whether the
study's runs support the claim.

`configs/studies/_claims.yaml` has the margins and the stand-ins that all studies use. A margin is the largest difference at
which two scores still count as similar. A study can run at several scales, from the full size of the papers down to small
ones. A stand-in is a score that a small scale measures in place of a score of the papers.
"""

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, pairwise, product
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from msgspec import Meta, to_builtins

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
    interval,
    limits_by_row,
    same_start,
    scores_by_seed,
)

ONE_SEED = 'one seed'
COLLAPSED = 'collapsed runs'
NO_SPREAD = 'no spread'
ONE_STAND_IN = 'one stand-in for both scores'
FULL_SCALE = 'in1k'
GRAM = 5  # Quotations are compared with the paper in sequences of this many words.
MOST_WORDS = 25  # the largest number of words in a quotation
WORD = re.compile(r'[a-z0-9]+')
LOWER_IS_BETTER = ('nyuv2_rms', 'nyuv2_rel', 'alignment', 'uniformity')

Names = Annotated[tuple[str, ...], Meta(min_length=1)]
Two = Annotated[tuple[str, ...], Meta(min_length=2, max_length=2)]
Three = Annotated[tuple[str, ...], Meta(min_length=3)]
Margin = Annotated[float, Meta(gt=0)]
Need = Literal['all', 'most']  # how many parts of a claim must hold for the claim to hold
# A function that gets the names of a row and of a score, and returns the value of the score.
Known = Callable[[str, str], float | None]
Margins = Callable[[str], float]  # a function that maps a score to its margin
Term = tuple[float, str, str]  # a weight, the row whose mean score is weighted, and the score


class ClaimPart(NamedTuple):
    """A part of a claim, which states one inequality about a weighted sum of mean scores.

    The part states that the sum minus `offset` exceeds `least`. If `margin` is set, it states instead that the sum minus
    `offset` is at most `margin` away from zero.
    """

    terms: Sequence[Term]
    least: float = 0.0
    margin: float | None = None
    offset: float = 0.0

    @property
    def weights(self) -> dict[str, dict[str, float]]:
        """For each row, the weight of each of its scores in the sum."""
        weights: dict[str, dict[str, float]] = {}
        for weight, row, score in self.terms:
            by_score = weights.setdefault(row, {})
            by_score[score] = by_score.get(score, 0.0) + weight
        return weights

    @property
    def scores(self) -> list[str]:
        return list(dict.fromkeys(score for _, _, score in self.terms))

    def effect(self, known: Known) -> float | None:
        """Return the sum minus `offset`, with scores from `known`, such as published scores; None if a score is missing."""
        total = -self.offset
        for weight, row, score in self.terms:
            number = known(row, score)
            if number is None:
                return None
            total += weight * number
        return total


class Form(Declared, frozen=True, tag_field='form'):
    """Base class of the forms of tests, such as the difference of two rows.

    Most forms override `parts`, and each part is tested separately. The other forms override `rows`, `scores` and `evidence`.
    """

    need: ClassVar[Need] = 'all'

    def parts(self, margin: Margins) -> list[ClaimPart]:
        return []

    @property
    def rows(self) -> Sequence[str]:
        """The names of all rows that the test compares."""
        parts = self.parts(lambda score: 1.0)
        return list(dict.fromkeys(row for part in parts for row in part.weights))

    @property
    def all_scores(self) -> Sequence[str]:
        """The names of all scores that the test compares."""
        return self.scores

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        """Return the evidence for and against the claim.

        Args:
            runs: The study's runs.
            seeds: If given, return the evidence that this number of seeds would give with the same estimate and spread.
                The forms `regression` and `configs` ignore this number.
        """
        return self.combine(runs.test_all(self.parts(runs.margin), seeds))

    def effects(self, runs: 'StudyRuns', printed: Known) -> list[dict[str, Any]]:
        """Return a record of each part, with its measured effect and the effect according to published numbers."""
        return [
            _effect_entry(
                part,
                runs.contrast(part),
                weights=part.weights,
                published=part.effect(printed),
                measured=part.effect(runs.mean),
            )
            for part in self.parts(runs.margin)
        ]

    def combine(self, parts: Sequence[Evidence]) -> Evidence:
        combine = claim_tests.most_hold if self.need == 'most' else claim_tests.all_hold
        return combine(parts)


class _Scored(Form, frozen=True):
    scores: Names
    need: Need = 'all'

    def parts(self, margin: Margins) -> list[ClaimPart]:
        parts: list[ClaimPart] = []
        for score in self.scores:
            parts += self.parts_of(score, margin(score))
        return parts

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        raise NotImplementedError


def _gain(one: str, other: str, score: str, weight: float = 1.0) -> list[Term]:
    """Return the terms of a sum, which is `weight` times the amount by which row `one` is better than row `other`.

    For scores that are better when they are lower, the signs are reversed.
    """
    sign = -weight if score in LOWER_IS_BETTER else weight
    return [(sign, one, score), (-sign, other, score)]


def _bounds(relation: str, margin: float) -> dict[str, float]:
    """Return the bounds of a part that states the given relation. A part without bounds states that its sum exceeds zero."""
    if relation in ('similar', 'plateau'):
        return dict(margin=margin)
    return dict(least=-margin) if relation in ('not_larger', 'not_worse', 'no_gain') else {}


class Difference(_Scored, frozen=True, tag='difference', kw_only=True):
    """Claims that the row `better` is better than the row `than` by more than `at_least` points."""

    better: str
    than: str
    at_least: float = 0.0

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        yield ClaimPart(_gain(self.better, self.than, score), self.at_least)


class Similar(_Scored, frozen=True, tag='equivalence', kw_only=True):
    """Claims that the scores of any two rows in `of` differ by at most `margin`, by default the margin of the score."""

    of: Annotated[tuple[str, ...], Meta(min_length=2)]
    margin: Margin | None = None

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        for one, other in combinations(self.of, 2):
            yield ClaimPart(_gain(one, other, score), margin=self.margin or margin)


class NotWorse(_Scored, frozen=True, tag='not_worse', kw_only=True):
    """Claims that the row `row` is better than the row `than`, or worse by at most `margin`.

    The default of `margin` is the margin of the score.
    """

    row: str
    than: str
    margin: Margin | None = None

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        yield ClaimPart(_gain(self.row, self.than, score), -(self.margin or margin))


class Interaction(_Scored, frozen=True, tag='interaction', kw_only=True):
    """Compares the gains of two pairs of rows, or the gains of one pair in several scores.

    The gain of a pair is how much better its first row is than its second row. The claim is that the gain of the pair
    `gain` is larger than the gain of the pair `than`, or larger than the gain of the same pair in the scores `than_scores`.
    The relation `similar` claims that the two gains differ by at most the margin. The relation `not_larger` claims that the
    gain of the pair `gain` does not exceed the other gain by more than the margin.
    """

    gain: Two
    than: Two | None = None
    than_scores: tuple[str, ...] = ()
    relation: Literal['larger', 'similar', 'not_larger'] = 'larger'

    def __post_init__(self) -> None:
        if not self.than and not self.than_scores:
            raise UserError(
                'interaction: a gain must be compared with another gain; define the other gain by `than` or `than_scores`',
                code='claim-interaction',
            )

    @property
    def all_scores(self) -> Sequence[str]:
        return [*self.scores, *self.than_scores]

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        sign = -1.0 if self.relation == 'not_larger' else 1.0
        for other in self.than_scores or (score,):
            gain = _gain(*self.gain, score, sign)
            less = _gain(*(self.than or self.gain), other, -sign)
            yield ClaimPart(gain + less, **_bounds(self.relation, margin))


class Largest(_Scored, frozen=True, tag='largest', kw_only=True):
    """Claims that the gain of `pair` exceeds the gain of every pair in `among`.

    The gain of a pair is how much better its first row is than its second row.
    """

    pair: Two
    among: Annotated[tuple[Two, ...], Meta(min_length=1)]

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        for other in self.among:
            yield ClaimPart(_gain(*self.pair, score) + _gain(*other, score, -1.0))


class Trend(_Scored, frozen=True, tag='trend', kw_only=True):
    """Claims how scores change from row to row in `over`.

    `rises` and `falls` claim that scores get better or worse from each row to the next. `plateau` claims that all later rows
    are within the margin of the first row. `no_gain` claims that no later row is better than the first row by more than the
    margin. If `after` names a row, the rows before this row are left out, so that it becomes the first row.
    """

    over: Three
    shape: Literal['rises', 'falls', 'plateau', 'no_gain']
    after: str = ''

    def __post_init__(self) -> None:
        if self.after and self.after not in self.over[:-1]:
            raise UserError(
                f"trend.after: must be a row in `over` other than the last row ('{self.after}'); name one of "
                f'{", ".join(self.over[:-1])}',
                code='claim-row',
            )

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        first, *rest = self.over[self.over.index(self.after) if self.after else 0 :]
        stepwise = self.shape in ('rises', 'falls')
        sign = 1.0 if self.shape in ('rises', 'plateau') else -1.0
        for early, late in pairwise([first, *rest]) if stepwise else product([first], rest):
            yield ClaimPart(_gain(late, early, score, sign), **_bounds(self.shape, margin))


class Property(_Scored, frozen=True, tag='property', kw_only=True):
    """Claims that a measured quantity, such as a norm, is larger by more than `at_least` in one row than in another.

    Unlike `Difference`, this form ignores whether larger or smaller values are better.
    """

    larger: str
    than: str
    at_least: float = 0.0

    def parts_of(self, score: str, margin: float) -> Iterator[ClaimPart]:
        terms = [(1.0, self.larger, score), (-1.0, self.than, score)]
        yield ClaimPart(terms, self.at_least)


class Rival(Form, frozen=True, tag='rival', kw_only=True):
    """Compares a row with published numbers of a method that has no row in the study.

    Only runs at full size test this claim, because scores at smaller scales are not comparable with published numbers.
    """

    row: str
    numbers: dict[str, float]  # the method's published number for each score
    of: str  # the method, and the paper and table that print its numbers
    relation: Literal['better', 'similar', 'not_worse', 'worse'] = 'better'
    need: Need = 'all'

    @property
    def scores(self) -> Sequence[str]:
        return list(self.numbers)

    def parts(self, margin: Margins) -> list[ClaimPart]:
        parts = []
        for score, number in self.numbers.items():
            sign = -1.0 if (score in LOWER_IS_BETTER) != (self.relation == 'worse') else 1.0
            bounds = _bounds(self.relation, margin(score))
            parts.append(ClaimPart([(sign, self.row, score)], offset=sign * number, **bounds))
        return parts

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        if runs.scale != FULL_SCALE:
            return Evidence(reason=NOT_RUN)
        return super().evidence(runs, seeds)

    def effects(self, runs: 'StudyRuns', printed: Known) -> list[dict[str, Any]]:
        return super().effects(runs, printed) if runs.scale == FULL_SCALE else []


class Regression(Form, frozen=True, tag='regression', kw_only=True):
    """Claims how the score `y` changes with the score `x` over the rows of several groups.

    Parallel lines are fitted to the rows' mean scores: one slope for all groups, and one intercept for each group. `slope`
    claims that `y` rises with `x`, that it falls, or (`none`) that it changes by at most `flat` points if `x` changes by
    one point. With `any`, nothing is claimed about the slope. `ranking` claims the order of the groups by their intercepts,
    the highest first.
    """

    x: str
    y: str
    groups: dict[str, Names]
    slope: Literal['rises', 'falls', 'none', 'any'] = 'rises'
    flat: Margin = 0.25
    ranking: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [group for group in self.ranking if group not in self.groups]:
            raise UserError(
                f"regression.ranking: unknown group ('{unknown[0]}'); name some of {', '.join(self.groups)}",
                code='claim-group',
            )

    @property
    def rows(self) -> Sequence[str]:
        return [row for rows in self.groups.values() for row in rows]

    @property
    def scores(self) -> Sequence[str]:
        return self.x, self.y

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        if self._has_one_stand_in(runs):
            return Evidence(reason=ONE_STAND_IN)
        tests = [_tested(contrast, part) for _, contrast, part in self._contrasts(runs)]
        return self.combine(tests) if tests else Evidence(reason=NOT_RUN)

    def effects(self, runs: 'StudyRuns', printed: Known) -> list[dict[str, Any]]:
        if self._has_one_stand_in(runs):
            return []
        return [
            _effect_entry(part, contrast, name=name, weights={}, published=None) | dict(seeds=None)
            for name, contrast, part in self._contrasts(runs)
        ]

    def _has_one_stand_in(self, runs: 'StudyRuns') -> bool:
        measured = runs.measured(self.x)
        return measured is not None and measured == runs.measured(self.y)

    def _contrasts(self, runs: 'StudyRuns') -> Iterator[tuple[str, Contrast, ClaimPart]]:
        """Yield each quantity that the claim restricts: the slope, or the difference of two groups' intercepts.

        Each item has the name of the quantity, its estimate, and the part of the claim that states the restriction.
        Nothing is yielded if a group has no runs.
        """
        x, y, labels = runs.points(self.groups, self.x, self.y)
        if len(np.unique(labels)) < len(self.groups):
            return
        slope, *intercepts = np.eye(1 + len(self.groups))
        intercept = dict(zip(self.groups, intercepts))
        claimed = []
        if self.slope != 'any':
            margin = self.flat if self.slope == 'none' else None
            name = f'slope of {self.y} over {self.x}'
            claimed.append((name, -slope if self.slope == 'falls' else slope, margin))
        for higher, lower in pairwise(self.ranking):
            name = f'{higher} − {lower}, {self.y} at equal {self.x}'
            claimed.append((name, intercept[higher] - intercept[lower], None))
        for name, weights, margin in claimed:
            contrast = claim_tests.parallel_lines(x, y, labels, weights)
            yield name, contrast, ClaimPart((), margin=margin)


class Collapse(Form, frozen=True, tag='collapse', kw_only=True):
    """Claims that most runs of each row in `of` collapse. With `avoided`, claims that most runs do not collapse."""

    of: Names
    avoided: bool = False
    scores: Names

    @property
    def rows(self) -> Sequence[str]:
        return self.of

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
        return self.combine(parts)


class Every(Form, frozen=True, tag='all', kw_only=True):
    """Claims that all tests in `of` hold."""

    of: Annotated[tuple['Test', ...], Meta(min_length=2)]

    def parts(self, margin: Margins) -> list[ClaimPart]:
        return [part for test in self.of for part in test.parts(margin)]

    @property
    def rows(self) -> Sequence[str]:
        return list(dict.fromkeys(row for test in self.of for row in test.rows))

    @property
    def scores(self) -> Sequence[str]:
        return list(dict.fromkeys(score for test in self.of for score in test.all_scores))

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        return self.combine([test.evidence(runs, seeds) for test in self.of])

    def effects(self, runs: 'StudyRuns', printed: Known) -> list[dict[str, Any]]:
        return [effect for test in self.of for effect in test.effects(runs, printed)]


class Majority(Every, frozen=True, tag='most', kw_only=True):
    """Claims that more than half of the tests in `of` hold."""

    need: ClassVar[Need] = 'most'


class OnlyDiffer(Form, frozen=True, tag='configs', kw_only=True):
    """Claims that the configs of two rows differ only in the keys `only_in`. This can be tested without training."""

    of: Two
    only_in: Names

    @property
    def rows(self) -> Sequence[str]:
        return self.of

    @property
    def scores(self) -> Sequence[str]:
        return ()

    def evidence(self, runs: 'StudyRuns', seeds: int | None = None) -> Evidence:
        keys = runs.differences(*self.of)
        if keys is None:
            return Evidence(reason=NOT_RUN)
        declared = tuple(f'{prefix}.' for prefix in self.only_in)
        if all(f'{key}.'.startswith(declared) for key in keys):
            return Evidence(support=0.0)
        return Evidence(against=0.0)


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
        name: A short name, by which other claims refer to this claim. It is unique over all studies.
        quote: The exact words of the paper, from 5 to 25 words.
        paper: The key of the paper in `configs/studies/_claims.yaml`.
        where: Every place in the paper that states the claim, such as 'Sec. 4.1' or 'Tab. 2'.
        test: The form that tests the claim on the rows of the study.
        published: How far the paper's own numbers support its words; 'drawn only' if they are only in a figure.
        evidence: The paper's numbers for this claim, if they are not the published numbers of the rows.
        reading: How the test understands the quotation, if its words allow several interpretations.
        see: The names of related claims, such as the opposite claim of another paper.
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
    """A paper with claims: its title, and regular expressions that match the names of its sections, tables and figures."""

    title: str
    places: Names


class ScaleMargins(Declared, frozen=True):
    """The margins and stand-ins at one scale, with the reason for the margins."""

    reason: str
    margins: dict[str, Margin]  # the margin of each score
    other: Margin | None = None  # the margin of the scores that `margins` does not list
    # The stand-in of each score of the papers that this scale does not measure.
    stand_ins: dict[str, str] = {}


class Untested(Declared, frozen=True):
    """A claim without a test of its own, with the reason in `why`."""

    paper: str
    where: str
    quote: str
    why: str


class Shared(Declared, frozen=True):
    """The content of `configs/studies/_claims.yaml`, which all studies with claims share."""

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
    """Return a hash of each sequence of GRAM consecutive words of a text.

    The repository has these hashes of each paper, so that quotations can be checked without the text of the paper.
    """
    words = _words(text)
    hashes = []
    for place in range(len(words) - GRAM + 1):
        gram = ' '.join(words[place : place + GRAM])
        digest = hashlib.sha256(gram.encode()).digest()
        hashes.append(int.from_bytes(digest[:4], 'big'))
    return np.array(hashes, np.uint32)


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def check_claims(claims: Sequence[Claim], rows: Sequence[str], scores: Sequence[str]) -> None:
    """Raise an error unless each claim names known rows, scores and places in its paper, and quotes the paper exactly.

    Args:
        claims: The claims of a study.
        rows: The names of the study's rows.
        scores: The scores that the study measures at full size.
    """
    for claim in claims:
        _require_known(claim.name, 'row', claim.test.rows, rows)
        _require_known(claim.name, 'score', claim.test.all_scores, scores)
        _require_known(claim.name, 'paper', [claim.paper], [*shared_claims().papers])
        patterns = shared_claims().papers[claim.paper].places
        for place in claim.where:
            if not any(re.fullmatch(pattern, place) for pattern in patterns):
                raise UserError(
                    f"claim '{claim.name}': `where` must name a section, table or figure of the paper ('{place}'); write the "
                    f'place so that it matches {patterns[0]}',
                    code='claim-place',
                )
        words = len(_words(claim.quote))
        if not GRAM <= words <= MOST_WORDS:
            raise UserError(
                f"claim '{claim.name}': a quotation must have {GRAM} to {MOST_WORDS} words, but has '{words}'; shorten or "
                'extend it',
                code='claim-quote-length',
            )
        if not np.isin(word_hashes(claim.quote), _hashes(claim.paper)).all():
            raise UserError(
                f"claim '{claim.name}': the paper does not contain these words ('{claim.quote}'); quote the paper exactly",
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
    """Gives claims access to the runs in a study's record.

    Args:
        record: The record, which is the content of study.json.
        scale: The name of the scale at which the runs were trained.
        differences: A function that returns the config keys in which two rows differ, or None if the keys are unknown.
    """

    record: Mapping[str, Any]
    scale: str
    differences: Callable[[str, str], Sequence[str] | None] = lambda one, other: None

    @cached_property
    def rows(self) -> dict[str, Mapping[str, Any]]:
        return {row['name']: row for row in self.record['rows']}

    @property
    def margins(self) -> ScaleMargins:
        return shared_claims().scales.get(self.scale, ScaleMargins('', {}))

    def measured(self, score: str) -> str | None:
        """Return the name of the score that is measured at this scale: the score itself or its stand-in.

        The name is None if the study does not measure the score.
        """
        name = self.margins.stand_ins.get(score, score)
        return name if any(name == metric['key'] for metric in self.record['metrics']) else None

    def margin(self, score: str) -> float:
        """Return the margin of a score at this scale; NaN if it has none."""
        known = self.margins
        return known.margins.get(self.measured(score) or score, known.other) or math.nan

    def scores(self, row: str, score: str) -> dict[int, float]:
        """Return the row's scores by seed. The result is empty if nothing has been measured."""
        measured = self.measured(score)
        return scores_by_seed(self.rows[row], measured) if measured and row in self.rows else {}

    def test_all(self, parts: Sequence[ClaimPart], seeds: int | None) -> list[Evidence]:
        """Test each part of a claim, and return the evidence.

        At a small scale, parts whose scores are not measured are skipped. If all parts lack scores, they are kept, so
        that the evidence states why the claim cannot be tested.
        """
        measured = [part for part in parts if all(map(self.measured, part.scores))]
        if measured and self.scale != FULL_SCALE:
            parts = measured
        return [self.test(part, seeds) for part in parts]

    def test(self, part: ClaimPart, seeds: int | None) -> Evidence:
        contrast = self.contrast(part)
        if isinstance(contrast, str):
            return Evidence(reason=contrast)
        return _tested(contrast, part, seeds)

    def contrast(self, part: ClaimPart) -> Contrast | str:
        """Return the estimate and the standard error of a part's weighted sum, or the reason why the part cannot be tested.

        The offset of the part is not yet subtracted.
        """
        sums = {row: self._weighted(row, weights) for row, weights in part.weights.items()}
        if not all(sums.values()):
            return NOT_RUN
        if any(self.collapsed(row, score)[0] for _, row, score in part.terms):
            return COLLAPSED
        all_seeds = sorted(set().union(*sums.values()))
        values = [[scores.get(seed, math.nan) for seed in all_seeds] for scores in sums.values()]
        blocks = self._are_blocks([*sums], set(all_seeds).intersection(*sums.values()))
        return claim_tests.sum_of_means(np.array(values), blocks)

    def _weighted(self, row: str, weights: Mapping[str, float]) -> dict[int, float]:
        """Return a row's weighted sum of scores for each seed whose run has all of these scores."""
        by_score = {score: self.scores(row, score) for score in weights}
        sums = {}
        for seed in set.intersection(*map(set, by_score.values())):
            sums[seed] = sum(weights[score] * scores[seed] for score, scores in by_score.items())
        return sums

    def _are_blocks(self, names: Sequence[str], seeds: Collection[int]) -> bool:
        """Return True if the runs of the rows can be paired by their shared seeds."""
        first, *others = (self.rows[name] for name in names)
        pairs = product(others, seeds)
        return len(seeds) > 1 and all(same_start(first, other, seed) for other, seed in pairs)

    def collapsed(self, row: str, score: str) -> tuple[int, int]:
        """Return how many runs of a row have collapsed according to a score, and how many runs have this score."""
        scores = self.scores(row, score).values()
        if not scores:
            return 0, 0
        limit = limits_by_row(self.record, self.measured(score)).get(row, -math.inf)
        return sum(score < limit for score in scores), len(scores)

    def points(
        self, groups: Mapping[str, Sequence[str]], x: str, y: str
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the mean scores `x` and `y` of each measured row, and the index of the row's group in `groups`."""
        points = []
        for place, names in enumerate(groups.values()):
            for name in names:
                point = self.mean(name, x), self.mean(name, y), place
                if None not in point:
                    points.append(point)
        x, y, labels = np.array(points).reshape(-1, 3).T
        return x, y, labels.astype(int)

    def mean(self, row: str, score: str) -> float | None:
        """Return the mean score over all runs of a row, or None if no run has the score."""
        scores = [*self.scores(row, score).values()]
        return float(np.mean(scores)) if scores else None


def _tested(contrast: Contrast, part: ClaimPart, seeds: int | None = None) -> Evidence:
    if contrast.seeds < 2:
        return Evidence(reason=ONE_SEED)
    if math.isnan(contrast.error):
        return Evidence(reason=NO_SPREAD)
    if math.isnan(part.least + (part.margin or 0.0)):
        return Evidence(reason=f'no margin for {", ".join(part.scores)}')
    if seeds:
        contrast = contrast.at(seeds)
    shifted = contrast.shifted(-part.offset)
    if part.margin is None:
        return claim_tests.above(shifted, part.least)
    return claim_tests.within(shifted, part.margin)


def judge(claims: Sequence[Claim], runs: StudyRuns, printed: Known) -> list[dict[str, Any]]:
    """Return a record of each claim with its verdict, which is corrected for the number of claims in the study.

    Args:
        claims: The claims.
        runs: The study's runs.
        printed: A function that returns the number that the papers print for a row and a score, or None.
    """
    evidence = [claim.test.evidence(runs) for claim in claims]
    verdicts = claim_tests.family_verdicts(evidence)
    judged = []
    for claim, one, verdict in zip(claims, evidence, verdicts):
        if set(one.reason.split('; ')) == {NOT_RUN}:
            verdict = NOT_RUN
        measured = {score: runs.measured(score) for score in claim.test.all_scores}
        entry = to_builtins(claim) | dict(
            paper=shared_claims().papers[claim.paper].title,
            verdict=verdict,
            reason=one.reason if verdict in (INCONCLUSIVE, NOT_RUN) else '',
            p=one.p,
            parts=claim.test.effects(runs, printed),
            stand_ins={score: own for score, own in measured.items() if own not in (score, None)},
        )
        del entry['test']
        if verdict == INCONCLUSIVE and not one.reason:
            entry['seeds_needed'] = seeds_needed(claim.test, runs, len(claims))
        judged.append(entry)
    return judged


def _effect_entry(part: ClaimPart, contrast: Contrast | str, **entry: Any) -> dict[str, Any]:
    """Return the record of a part's effect, with its 95 % confidence interval if the part could be tested."""
    entry |= dict(margin=_known(part.margin), least=_known(part.least), seeds=None)
    if isinstance(contrast, str):
        return entry | dict(low=None, high=None)
    ends = interval(contrast.estimate - part.offset, contrast.error, contrast.freedom)
    return entry | dict(
        measured=ends['estimate'], low=ends['low'], high=ends['high'], seeds=contrast.seeds
    )


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def seeds_needed(test: Test, runs: StudyRuns, claims: int) -> int | None:
    """Return how many seeds per row would decide a claim if its estimate and spread stayed the same.

    The result is None if more than MOST_SEEDS would be needed. Numbers of seeds are tried in steps of 5 %, so a large result
    can be up to 5 % too large.
    """
    seeds = 2
    while seeds <= MOST_SEEDS:
        if test.evidence(runs, seeds).p < LEVEL / claims:
            return seeds
        seeds += max(1, seeds // 20)
    return None
