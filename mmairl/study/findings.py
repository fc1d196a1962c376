"""The effects of a study on one score, each with the facts that a reader needs to interpret it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from matplotlib.ticker import MaxNLocator

from mmairl.report.table import signed
from mmairl.study.statistics.compare import collapsed_seeds, level_of, scores_by_row
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
# If a row takes more than this multiple of its base row's compute, a note states the multiple.
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
        remark: A further remark, such as missing seeds.
        digits: The number of decimals to show.
    """

    change: str = ''
    cost: float = 0.0
    published: float | None = None
    remark: str = ''
    digits: int = 1

    @property
    def kind(self) -> str:
        return KINDS.get(self.verdict, 'problem')

    @property
    def magnitude(self) -> float:
        return abs(self.estimate or 0.0)

    @property
    def size(self) -> str:
        return ABSENT if self.estimate is None else signed(self.estimate, self.digits)

    @property
    def interval(self) -> str:
        if self.low is None:
            return ''
        return f'{signed(self.low, self.digits)} to {signed(self.high, self.digits)}'

    @property
    def published_size(self) -> str:
        return ABSENT if self.published is None else f'{self.published:+g}'.replace('-', '−')

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
        notes = [
            self.fails_after_correction and 'not significant after correction (Holm)',
            any(self.collapsed) and self.collapse_text,
            self.cost > COSTLIER and f'compute × {self.cost:.2g}',
            self.remark,
        ]
        return list(filter(None, notes))

    @property
    def agreement(self) -> str:
        """Whether a higher or lower score has the sign of the published effect, as text. An effect of zero has no sign."""
        if self.published is None or self.verdict not in (HIGHER, LOWER):
            return ''
        if not self.published:
            return 'no difference in the paper'
        return 'same sign' if self.estimate * self.published > 0 else 'opposite sign'


class Findings:
    """All findings of a study on one score, and the axis that they share.

    Args:
        study: The record of the study.
        metric: The description of the score in the record.
    """

    def __init__(self, study: Record, metric: Record) -> None:
        self.study = study
        self.key = metric['key']
        self.label = metric['label']
        self.lower_is_better = metric['lower_is_better']
        self.unit = 'points' if metric['unit'] == '%' else metric['unit'] or 'its unit'
        self.rows = {row['name']: row for row in study['rows']}
        self.scores = scores_by_row(study, self.key)
        self.means = {row: mean(found.values()) for row, found in self.scores.items() if found}
        # Scores below 10, such as errors in meters, have three decimals.
        self.digits = 1 if max(map(abs, self.means.values()), default=10) >= 10 else 3
        # The published score to show next to this score: itself, or the score that most rows publish.
        keys = [key for row in study['rows'] for key in row['published']]
        self.published_key = self.key if self.key in keys else max(keys, key=keys.count, default='')
        find = self._factor if study['design'] else self._comparison
        self.all: list[Finding] = [find(one) for one in study['effects'].get(self.key, ())]
        if all(one.published is None for one in self.all):
            self.published_key = ''
        self.coverage = f'{100 * (1 - level_of(study)):g}'
        self.noun = 'effect' if study['design'] else 'comparison'
        self.margin = self.all[0].margin or 0.0 if self.all else 0.0

    def _factor(self, effect: Record) -> Finding:
        aliases = ', '.join(Design(**self.study['design']).aliases(effect['name']))
        remark = f'not separable from {aliases}' if aliases else ''
        return Finding(**effect, remark=remark, digits=self.digits)

    def _comparison(self, effect: Record) -> Finding:
        row, base = self.rows[effect['name']], self.rows[effect['base']]
        numbers = [side['published'].get(self.published_key) for side in (row, base)]
        costs = [run_cost(side) for side in (row, base)]
        present, planned = len(effect['by_seed']), len(row['runs'])
        return Finding(
            **effect,
            change=row['factor'],
            cost=costs[0] / costs[1] if all(costs) else 0.0,
            # Printed numbers have few decimals. Without rounding, equal numbers could have a difference with a sign.
            published=None if None in numbers else round(numbers[0] - numbers[1], 6),
            remark=f'{present} of {planned} seeds' if 0 < present < planned else '',
            digits=self.digits,
        )

    @property
    def title(self) -> str:
        lower = ' (lower is better)' if self.lower_is_better else ''
        return f'Effects on {self.label}{lower}, in {self.unit}'

    @property
    def published(self) -> str:
        """The name of the published score, with a remark if it is not the measured score."""
        same = self.published_key in ('', self.key)
        remark = '' if same else ', a different score: compare the signs, not the sizes'
        return self.published_key + remark

    @property
    def decided(self) -> list[Finding]:
        """The effects whose verdict is 'higher' or 'lower', the largest effect first."""
        found = self.with_verdict(HIGHER, LOWER)
        return sorted(found, key=lambda one: one.magnitude, reverse=True)

    @property
    def undecided(self) -> list[Finding]:
        return [one for one in self.all if one.verdict not in (HIGHER, LOWER, EQUIVALENT)]

    @property
    def largest_open(self) -> Finding | None:
        """The largest of the estimated effects that have no decision; None if there are none."""
        known = [one for one in self.undecided if one.estimate is not None]
        return max(known, key=lambda one: one.magnitude, default=None)

    def with_verdict(self, *verdicts: str) -> list[Finding]:
        return [one for one in self.all if one.verdict in verdicts]

    @property
    def collapsed(self) -> dict[str, list[int]]:
        """For each row with collapsed runs, the seeds of these runs."""
        found = collapsed_seeds(self.study)
        return {name: sorted(seeds) for name, seeds in found.items() if seeds}

    @property
    def ticks(self) -> list[float]:
        """The round values that label the axis, including both of its ends."""
        values = [-self.margin, self.margin]
        for one in self.all:
            values += [one.estimate, one.published, one.low, one.high, *one.by_seed]
        known = [value for value in values if value is not None]
        return MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(min(known), max(known)).tolist()

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its length."""
        low, *_, high = self.ticks
        return round(100 * (value - low) / (high - low), 2)


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
