"""The effects of a study on one score, each with the facts that a reader needs to interpret it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import mean
from typing import Any

from mmairl.report.table import signed
from mmairl.study.statistics.compare import collapsed_seeds, scores_by_row
from mmairl.study.statistics.contrasts import (
    EQUIVALENT,
    HIGHER,
    INCONCLUSIVE,
    LOWER,
    MORE_COLLAPSES,
    Effect,
)
from mmairl.study.statistics.designs import Design

KINDS = {
    HIGHER: 'differs',
    LOWER: 'differs',
    MORE_COLLAPSES: 'differs',
    EQUIVALENT: 'equivalent',
    INCONCLUSIVE: 'inconclusive',
}
# If a row takes more than this multiple of its base row's compute, a remark states the multiple.
COSTLIER = 1.05
ABSENT = '—'
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding(Effect):
    """An effect with its context.

    Args:
        change: What the row changes, as text.
        cost: The compute of the row divided by that of its base row; 0 if unknown.
        published: The published effect; None unless the scores of both rows are published.
        printed_digits: The number of decimals of the published scores.
        remarks: Further remarks, such as missing seeds.
        digits: The number of decimals to show.
        group: The heading above the effects of one kind.
    """

    change: str = ''
    cost: float = 0.0
    published: float | None = None
    printed_digits: int = 1
    remarks: tuple[str, ...] = ()
    digits: int = 1
    group: str = ''

    @property
    def kind(self) -> str:
        return KINDS.get(self.verdict, 'problem')

    @property
    def magnitude(self) -> float:
        return abs(self.estimate or 0.0)

    def shown(self, value: float | None) -> str:
        return ABSENT if value is None else signed(value, self.digits)

    @property
    def size(self) -> str:
        return self.shown(self.estimate)

    @property
    def interval(self) -> str:
        return '' if self.low is None else f'{self.shown(self.low)} to {self.shown(self.high)}'

    @property
    def published_size(self) -> str:
        return replace(self, digits=self.printed_digits).shown(self.published)

    @property
    def fails_after_correction(self) -> bool:
        """Whether the verdict is inconclusive although the interval excludes zero, which is not corrected for the family."""
        return self.verdict == INCONCLUSIVE and self.low * self.high > 0

    @property
    def collapse_text(self) -> str:
        return 'collapsed runs: {} against {}'.format(*self.collapsed)

    @property
    def notes(self) -> list[str]:
        """Remarks that the page shows next to the verdict."""
        notes = []
        if self.fails_after_correction:
            notes.append('not significant after correction (Holm)')
        if any(self.collapsed):
            notes.append(self.collapse_text)
        if self.cost > COSTLIER:
            notes.append(f'compute × {self.cost:.2g}')
        return [*notes, *self.remarks]

    @property
    def agreement(self) -> str:
        """Whether the measured effect agrees with the published effect, as text; '' if they cannot be compared.

        A published effect that rounds to zero at the last printed digit has no sign.
        """
        if self.published is None or self.estimate is None or self.kind == 'problem':
            return ''
        if self.verdict == INCONCLUSIVE:
            return 'this study: inconclusive'
        printed = round(self.published, self.printed_digits)
        if self.verdict == EQUIVALENT:
            return 'agrees' if abs(printed) <= self.margin else 'not found here'
        if not printed:
            return 'no difference in the paper'
        return 'same sign' if (self.estimate > 0) == (printed > 0) else 'opposite sign'


@dataclass(frozen=True)
class Findings:
    """All findings of a study on one score.

    Args:
        study: The record of the study.
        metric: The description of the score in the record.
    """

    study: Record
    metric: Record

    @property
    def key(self) -> str:
        return self.metric['key']

    @property
    def label(self) -> str:
        return self.metric['label']

    @property
    def unit(self) -> str:
        unit = self.metric['unit']
        return 'points' if unit == '%' else unit or 'its unit'

    @cached_property
    def rows(self) -> dict[str, Record]:
        return {row['name']: row for row in self.study['rows']}

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean score of each row that has a score."""
        return {name: mean(by_seed.values()) for name, by_seed in self.scores.items() if by_seed}

    @cached_property
    def scores(self) -> dict[str, dict[int, float]]:
        return scores_by_row(self.study, self.key)

    @cached_property
    def digits(self) -> int:
        """The number of decimals of this score: one if the mean of a row is at least 10, otherwise three."""
        largest = max(map(abs, self.means.values()), default=0.0)
        return 1 if largest >= 10 or not largest else 3

    @cached_property
    def all(self) -> list[Finding]:
        """The effects that the study tests: those of a design's factors, or the comparisons of rows."""
        effects = self.study['effects'].get(self.key, ())
        if self.study['design']:
            return [self._factor(effect, 'Main effects') for effect in effects]
        return [self._comparison(effect) for effect in effects]

    @cached_property
    def interactions(self) -> list[Finding]:
        stored = self.study['interactions'].get(self.key, ())
        return [self._factor(one, 'Interactions') for one in stored]

    def _factor(self, effect: Record, group: str) -> Finding:
        design = Design(self.study['design']['factors'], self.study['design']['rows'])
        aliases = ', '.join(design.aliases(tuple(effect['name'].split(' × '))))
        return Finding(
            **effect,
            remarks=(f'not separable from {aliases}',) if aliases else (),
            digits=self.digits,
            group=group,
        )

    def _comparison(self, effect: Record) -> Finding:
        row, base = self.rows[effect['name']], self.rows[effect['base']]
        numbers = [side['published'].get(self.published_key) for side in (row, base)]
        costs = [run_cost(side) for side in (row, base)]
        known = None not in numbers
        present = len(effect['by_seed'])
        asked = 0 if row['external'] else len(self.study['seeds'])
        printed = [len(str(float(value)).partition('.')[2]) for value in numbers if known]
        return Finding(
            **effect,
            change=row['factor'],
            cost=costs[0] / costs[1] if all(costs) else 0.0,
            published=round(numbers[0] - numbers[1], 6) if known else None,
            printed_digits=max(printed, default=1),
            remarks=(f'{present} of {asked} seeds',) if 0 < present < asked else (),
            digits=self.digits,
        )

    @cached_property
    def published_key(self) -> str:
        """The key of the published score to show next to this score: itself, or the score with the most published pairs."""
        counts = Counter()
        for row in self.study['rows']:
            base = self.rows.get(row['on'], {'published': {}})
            counts.update(row['published'].keys() & base['published'].keys())
        return self.key if self.key in counts else max(sorted(counts), key=counts.get, default='')

    @property
    def decided(self) -> list[Finding]:
        """The effects whose verdict is 'higher' or 'lower', the largest effect first."""
        return sorted(
            (one for one in self.all if one.verdict in (HIGHER, LOWER)),
            key=lambda one: -one.magnitude,
        )

    @property
    def undecided(self) -> list[Finding]:
        return [one for one in self.all if one.verdict not in (HIGHER, LOWER, EQUIVALENT)]

    @property
    def largest_open(self) -> Finding | None:
        """The largest of the estimated effects that have no decision; None if there are none."""
        known = [one for one in self.undecided if one.estimate is not None]
        return max(known, key=lambda one: one.magnitude, default=None)

    def involving(self, row: str) -> list[Finding]:
        return [one for one in self.all if row in (one.name, one.base)]

    def unlike(self, other: 'Findings') -> list[Finding]:
        """Return the findings on this score whose verdicts differ from those on the score of `other`."""
        verdicts = {one.name: one.verdict for one in other.all}
        return [one for one in self.all if one.verdict != verdicts.get(one.name)]

    def shown_mean(self, row: str) -> str:
        value = self.means.get(row)
        return f'{row}: {ABSENT if value is None else format(value, f".{self.digits}f")}'

    def with_verdict(self, verdict: str) -> list[Finding]:
        return [one for one in self.all if one.verdict == verdict]

    @cached_property
    def chain(self) -> list[Finding]:
        """The comparisons, if they form a chain, in which the base row of each row is the previous row; otherwise, []."""
        linked = all(step.base == before.name for before, step in pairwise(self.all))
        return self.all if linked and len(self.all) > 1 and not self.study['design'] else []

    @property
    def total(self) -> Finding | None:
        """The difference between the last and the first row of a chain; None without a chain or if it is not measured."""
        stored = self.study['totals'].get(self.key)
        if not stored or stored['estimate'] is None:
            return None
        return Finding(**stored, digits=self.digits)

    @property
    def noun(self) -> str:
        if self.study['design']:
            return 'effect'
        return 'step' if self.chain else 'comparison'

    @cached_property
    def collapsed(self) -> dict[str, list[int]]:
        """For each row with collapsed runs, the seeds of these runs."""
        found = {name: sorted(seeds) for name, seeds in collapsed_seeds(self.study).items()}
        return {name: seeds for name, seeds in found.items() if seeds}

    @property
    def above_random(self) -> dict[str, float]:
        """The mean score of each trained row minus the score of the random network; empty if it was not measured."""
        random = [row['name'] for row in self.study['rows'] if row['untrained'] == 'random']
        base = self.means.get(random[0]) if random else None
        if base is None:
            return {}
        return {
            name: value - base
            for name, value in self.means.items()
            if not self.rows[name]['untrained']
        }


def run_cost(row: Record) -> float | None:
    """Return the FLOPs of a run of a row; None if they are unknown."""
    images = [run['images_seen'] for run in row['runs'] if run.get('images_seen')]
    return row['flops'] * mean(images) if row['flops'] and images else None


def all_findings(study: Record) -> Iterator[Findings]:
    """Yield the findings on each score by which rows are compared. The primary score comes first."""
    for metric in study['metrics']:
        found = Findings(study, metric)
        if found.all:
            yield found
