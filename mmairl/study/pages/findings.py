"""What a study found by one score: each effect with everything that bears on how to read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import mean
from typing import Any

from mmairl.report.effects import Effect, EffectsFigure
from mmairl.study.pages.study_tables import LABELS
from mmairl.study.statistics.compare_rows import (
    Pair,
    limits_by_row,
    scores_by_seed,
    shared_epochs,
)
from mmairl.study.statistics.verdict_words import (
    COLLAPSED,
    EQUIVALENT,
    HIGHER,
    INCONCLUSIVE,
    LOWER,
    OTHER_COLLAPSES,
    current_verdict,
)

CONFOUNDED = 'confounded'
KINDS = {
    HIGHER: 'differs',
    LOWER: 'differs',
    OTHER_COLLAPSES: 'differs',
    EQUIVALENT: 'equivalent',
    INCONCLUSIVE: 'inconclusive',
}
COSTLIER = 1.05  # times the compute of the base row, from which a remark says so
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """A comparison of two rows, or an effect of factors, by one score.

    Args:
        name: The row or the factors.
        on: The base row; '' for an effect of factors.
        stored: The comparison or effect as in study.json.
        change: What changes, in words.
        undeclared: Config keys that also differ, undeclared.
        cost: The compute of the row relative to its base, if known.
        published: The published effect, if both numbers are published.
        asked_seeds: Seeds that the study asks for.
        epochs: Epochs that both rows share, if one forks from the other or both from one trunk.
        digits: Decimals of the effect.
    """

    name: str
    on: str
    stored: Record
    change: str = ''
    undeclared: Sequence[str] = ()
    cost: float | None = None
    published: float | None = None
    asked_seeds: int = 0
    epochs: int = 0
    digits: int = 1

    @property
    def verdict(self) -> str:
        return CONFOUNDED if self.undeclared else current_verdict(self.stored)

    @property
    def margin(self) -> float:
        return self.stored['margin']

    @property
    def estimate(self) -> float | None:
        """The effect; None where the means of runs say nothing because some collapsed."""
        return None if self.collapses else self.stored['estimate']

    @property
    def interval(self) -> str:
        return self.effect().range

    @property
    def differs(self) -> bool:
        return self.verdict in (HIGHER, LOWER)

    @property
    def collapses(self) -> bool:
        return self.stored.get('share') is not None or self.verdict == COLLAPSED

    @property
    def collapsed_runs(self) -> str:
        row, base = self.stored['collapsed']
        return f'collapsed runs: {row} against {base}'

    @property
    def _excludes_zero(self) -> bool:
        low, high = self.stored['low'], self.stored['high']
        return low is not None and low * high > 0

    def notes(self) -> list[str]:
        """Return remarks that belong to the verdict."""
        notes = [f'from epoch {self.epochs} on'] if self.epochs else []
        if self.undeclared:
            notes.append(f'{", ".join(self.undeclared)} also changed')
        if self.verdict == INCONCLUSIVE and self._excludes_zero:
            notes.append('not after correction (Holm)')
        if self.collapses and 'collapsed' in self.stored:
            notes.append(self.collapsed_runs)
        if self.verdict == OTHER_COLLAPSES:
            notes.append(f'exact test p = {self.stored["share"]:.3f}')
        if self.cost and self.cost > COSTLIER:
            notes.append(f'compute × {self.cost:.2g}')
        if 0 < self.stored.get('seeds', 0) < self.asked_seeds:
            notes.append(f'{self.stored["seeds"]} of {self.asked_seeds} seeds')
        if aliases := self.stored.get('aliases'):
            notes.append(f'not separable from {", ".join(aliases)}')
        return notes

    def agreement(self) -> str:
        """Return how the measured effect relates to the published one."""
        if self.published is None or KINDS.get(self.verdict) is None:
            return ''
        if self.differs:
            same = (self.estimate > 0) == (self.published > 0)
            return 'same sign' if same else 'opposite sign'
        if self.verdict == EQUIVALENT:
            return 'agrees' if abs(self.published) <= self.margin else 'not found here'
        return 'open here'

    def effect(self, group: str = '') -> Effect:
        """Return the line of the effects figure."""
        hidden = self.collapses
        equivalent = f'{EQUIVALENT} within ±{self.margin:g}'
        return Effect(
            name=self.name,
            verdict=equivalent if self.verdict == EQUIVALENT else self.verdict,
            kind=KINDS.get(self.verdict, 'problem'),
            estimate=self.estimate,
            low=None if hidden else self.stored['low'],
            high=None if hidden else self.stored['high'],
            seeds=() if hidden else self.stored.get('spread', ()),
            change=self.change,
            note='; '.join(self.notes()),
            published=self.published,
            agreement=self.agreement(),
            group=group,
            digits=self.digits,
        )


@dataclass(frozen=True)
class Findings:
    """All findings of a study by one score.

    Args:
        study: The record of the study.
        key: The key of the score.
    """

    study: Record
    key: str

    @cached_property
    def rows(self) -> dict[str, Record]:
        return {row['name']: row for row in self.study['rows']}

    @cached_property
    def metric(self) -> Record:
        return next(one for one in self.study['metrics'] if one['key'] == self.key)

    @property
    def label(self) -> str:
        return self.metric['label']

    @property
    def unit(self) -> str:
        unit = self.metric.get('unit', '%')
        return 'points' if unit == '%' else unit or 'its unit'

    @cached_property
    def digits(self) -> int:
        """One decimal for percentages, three for quantities around 1."""
        means = [abs(self.mean(name) or 0) for name in self.rows]
        return 1 if max(means) >= 10 or not any(means) else 3

    @cached_property
    def crossed(self) -> Record | None:
        """The effects of a design's factors, which replace comparisons of rows."""
        return self.study.get('attribution', {}).get(self.key)

    @cached_property
    def undeclared(self) -> dict[str, Sequence[str]]:
        checks = self.study['fairness'].get('before', ())
        return {check['row']: check['undeclared'] for check in checks if check['undeclared']}

    @cached_property
    def all(self) -> list[Finding]:
        """The comparisons, or the effects that a crossed study asks for."""
        if self.study.get('attribution'):
            return self._factor_effects(asked=True) if self.crossed else []
        return [self._comparison(pair) for pair in self.study['comparisons'].get(self.key, ())]

    def _factor_effects(self, asked: bool) -> list[Finding]:
        keys = sorted({key for keys in self.undeclared.values() for key in keys})
        margin = self.crossed['margin']
        return [
            Finding(effect['name'], '', dict(effect, margin=margin), undeclared=keys)
            for effect in self.crossed['effects']
            if effect['asked'] == asked
        ]

    def _comparison(self, pair: Record) -> Finding:
        row, base = self.rows[pair['row']], self.rows[pair['on']]
        numbers = [side['published'].get(self.published_key) for side in (row, base)]
        sequential = self.study.get('sequential') or row.get('given')
        return Finding(
            name=pair['row'],
            on=pair['on'],
            stored=pair,
            change=row['factor'] or '',
            undeclared=self.undeclared.get(pair['row'], ()),
            cost=self._cost(pair),
            published=None if None in numbers else round(numbers[0] - numbers[1], 6),
            asked_seeds=0 if sequential else len(self.study['seeds']),
            epochs=shared_epochs(row, base),
            digits=self.digits,
        )

    def _cost(self, pair: Record) -> float | None:
        rows = self.study.get('cost', {}).get('rows', {})
        row, base = (rows.get(pair[side], {}).get('flops') for side in ('row', 'on'))
        return row / base if row and base else None

    @cached_property
    def published_key(self) -> str:
        """The published score next to this one: of the same key, or the one that most comparisons have."""
        keys = [metric['key'] for metric in self.study['published_metrics']]
        counts = dict.fromkeys(keys, 0)
        for pair in self.study['comparisons'].get(self.key, ()):
            row, base = (self.rows[pair[side]]['published'] for side in ('row', 'on'))
            for key in row.keys() & base.keys() & counts.keys():
                counts[key] += 1
        if counts.get(self.key):
            return self.key
        best = max(counts, key=counts.get, default='')
        return best if counts.get(best) else ''

    @property
    def published_label(self) -> str:
        """The name of that score; '' if no effect is published."""
        metrics = {one['key']: one['label'] for one in self.study['published_metrics']}
        label = metrics.get(self.published_key, '')
        return LABELS.get(label, label)

    @cached_property
    def chain(self) -> tuple[Finding, ...]:
        """The comparisons, if each row builds on the one before; else ()."""
        steps = self.all
        linked = all(step.on == before.name for before, step in pairwise(steps))
        return tuple(steps) if linked and len(steps) > 1 and not self.crossed else ()

    @cached_property
    def limits(self) -> dict[str, float]:
        """The scores below which runs have collapsed, by row."""
        return limits_by_row(self.study, self.key)

    @cached_property
    def collapsed(self) -> dict[str, list[int]]:
        """The seeds of each row whose runs have collapsed."""
        seeds = {}
        for name, limit in self.limits.items():
            scores = scores_by_seed(self.rows[name], self.key)
            if low := [seed for seed, score in scores.items() if score < limit]:
                seeds[name] = low
        return seeds

    @property
    def noun(self) -> str:
        if self.crossed:
            return 'effect'
        return 'step' if self.chain else 'comparison'

    def mean(self, row: str) -> float | None:
        scores = scores_by_seed(self.rows[row], self.key)
        return mean(scores.values()) if scores else None

    def shown_mean(self, row: str) -> str:
        value = self.mean(row)
        return f'{row}: —' if value is None else f'{row}: {value:.{self.digits}f}'

    @cached_property
    def total(self) -> Effect | None:
        """The difference of a chain's last row to its first, from the digits that are shown."""
        if self.crossed:
            gain = self.crossed['gain']
            return Effect('all factors', '', 'problem', gain['estimate'], gain['low'], gain['high'])
        if not self.chain:
            return None
        first, last = self.chain[0].on, self.chain[-1].name
        ends = [self.mean(row) for row in (last, first)]
        if None in ends:
            return None
        pair = Pair.of(self.rows[last], self.rows[first], self.key, self.limits)
        compared = pair.compare(self.key, self.chain[0].margin, 0.05)
        if any(compared.collapsed):
            return None
        confounded = sum(step.verdict == CONFOUNDED for step in self.chain)
        return Effect(
            f'{last}, less {first}',
            '',
            'problem',
            round(ends[0], self.digits) - round(ends[1], self.digits),
            compared.low,
            compared.high,
            note='includes a confounded step' if confounded else '',
            digits=self.digits,
        )

    def figure(self) -> EffectsFigure:
        """Return the effects figure of this score."""
        chain = self.chain
        if self.crossed:
            title = f'Effects of the factors on {self.label}, in {self.unit}'
        else:
            title = f'Effect of each {self.noun} on {self.label}, in {self.unit}'
        return EffectsFigure(
            title=title,
            effects=self._lines(),
            margin=self.all[0].margin,
            score=self.label,
            published=self.published_label,
            published_note=''
            if self.published_key == self.key
            else ', another score and scale: compare signs, not sizes',
            start=self.shown_mean(chain[0].on) if chain else '',
            end=self.shown_mean(chain[-1].name) if chain else '',
            total=self.total,
        )

    def _lines(self) -> list[Effect]:
        if not self.crossed:
            return [finding.effect() for finding in self.all]
        lines = []
        for finding in [*self.all, *self._factor_effects(asked=False)]:
            several = len(finding.stored['factors']) > 1
            lines.append(finding.effect('Interactions' if several else 'Main effects'))
        for share in self.crossed['shares']:
            numbers = {key: share[key] for key in ('estimate', 'low', 'high')}
            group = 'Shares of the total, over all orders of adding the factors (Shapley)'
            lines.append(Effect(share['factor'], 'share', 'share', group=group, **numbers))
        return lines


def primary_findings(study: Record) -> Findings | None:
    """Return the findings by the study's primary score; None if nothing is measured or compared."""
    for found in all_findings(study):
        return found
    return None


def all_findings(study: Record) -> list[Findings]:
    """Return the findings by each score that compares rows, the primary one first."""
    every = [Findings(study, metric['key']) for metric in study['metrics']]
    primary = study.get('primary')
    every.sort(key=lambda found: found.key != primary)
    return [found for found in every if found.all]
