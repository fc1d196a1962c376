"""The effects of a study on one score, each with the facts that a reader needs to interpret it.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.
The rows of a factorial design are combinations of the levels of factors.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import mean
from typing import Any

from mmairl.report.effects import Effect, EffectsFigure
from mmairl.study.pages.study_tables import label_of
from mmairl.study.statistics.compare_rows import (
    compare_pair,
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
# If a row takes more than this multiple of its base row's compute, a remark states the multiple.
COSTLIER = 1.05
SHARES = (
    'Share of each factor in the total, averaged over all orders of adding the factors (Shapley)'
)
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """The result of comparing two rows by one score, or the effect of factors on this score.

    Args:
        name: The name of the row or of the factors.
        on: The name of the base row; '' for an effect of factors.
        stored: The comparison or effect, as in study.json.
        change: A description of what the row changes.
        undeclared: Config keys that also differ between the rows although the study does not declare them.
        cost: The compute of the row divided by that of its base row; 0 if unknown.
        published: The published effect; None unless the scores of both rows are published.
        asked_seeds: The number of seeds that each row should have; 0 if rows may have different numbers of seeds.
        epochs: The number of epochs that both rows share because one continues the other or both continue the same row.
        digits: The number of decimals of the effect.
    """

    name: str
    on: str
    stored: Record
    change: str = ''
    undeclared: Sequence[str] = ()
    cost: float = 0.0
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
        """The estimated effect; None if a run collapsed, because the means are not compared then."""
        return None if self.collapses else self.stored['estimate']

    @property
    def magnitude(self) -> float:
        return abs(self.estimate or 0.0)

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
    def costs_more(self) -> bool:
        return self.cost > COSTLIER

    @property
    def fails_after_correction(self) -> bool:
        """Whether the verdict is inconclusive although the interval excludes zero.

        This can happen because verdicts are corrected for the number of comparisons, and intervals are not.
        """
        low, high = self.stored['low'], self.stored['high']
        return self.verdict == INCONCLUSIVE and low is not None and low * high > 0

    @property
    def notes(self) -> list[str]:
        """Remarks that the page shows next to the verdict."""
        stored = self.stored
        notes = []
        if self.epochs:
            notes.append(f'changed after epoch {self.epochs}')
        if self.undeclared:
            notes.append(f'{", ".join(self.undeclared)} also changed')
        if self.fails_after_correction:
            notes.append('not significant after correction (Holm)')
        if self.collapses and 'collapsed' in stored:
            notes.append(self.collapsed_runs)
        if self.verdict == OTHER_COLLAPSES:
            notes.append(f'exact test p = {stored["share"]:.3f}')
        if self.costs_more:
            notes.append(f'compute × {self.cost:.2g}')
        if 0 < stored.get('seeds', 0) < self.asked_seeds:
            notes.append(f'{stored["seeds"]} of {self.asked_seeds} seeds')
        if aliases := stored.get('aliases'):
            notes.append(f'not separable from {", ".join(aliases)}')
        return notes

    @property
    def agreement(self) -> str:
        """Whether the measured effect agrees with the published effect, as text; '' if they cannot be compared."""
        if self.published is None or self.verdict not in KINDS or self.collapses:
            return ''
        if self.differs:
            same = (self.estimate > 0) == (self.published > 0)
            return 'same sign' if same else 'opposite sign'
        if self.verdict == EQUIVALENT:
            return 'agrees' if abs(self.published) <= self.margin else 'not found here'
        return 'this study: inconclusive'

    def effect(self, group: str = '') -> Effect:
        """Return the finding as a line of the effects figure."""
        stored = {} if self.collapses else self.stored
        verdict = self.verdict
        return Effect(
            name=self.name,
            verdict=f'{verdict} within ±{self.margin:g}' if verdict == EQUIVALENT else verdict,
            kind=KINDS.get(verdict, 'problem'),
            estimate=self.estimate,
            low=stored.get('low'),
            high=stored.get('high'),
            seeds=stored.get('spread', ()),
            change=self.change,
            note='; '.join(self.notes),
            published=self.published,
            agreement=self.agreement,
            group=group,
            digits=self.digits,
        )


@dataclass(frozen=True)
class Findings:
    """All findings of a study on one score.

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
        """The number of decimals of this score: one if the mean of a row is at least 10 or all means are 0, otherwise three."""
        means = [abs(self.mean(name) or 0) for name in self.rows]
        return 1 if max(means) >= 10 or not any(means) else 3

    @cached_property
    def crossed(self) -> Record | None:
        """The effects of a design's factors, which replace the comparisons of rows; None if the study has no design."""
        return self.study.get('attribution', {}).get(self.key)

    @cached_property
    def undeclared(self) -> dict[str, Sequence[str]]:
        checks = self.study['fairness'].get('before', ())
        return {check['row']: check['undeclared'] for check in checks if check['undeclared']}

    @cached_property
    def all(self) -> list[Finding]:
        """The effects that the study tests: those of factors if it has a design, otherwise the comparisons of rows."""
        if self.study.get('attribution'):
            return self._factor_effects(asked=True) if self.crossed else []
        return [self._comparison(pair) for pair in self._family]

    @property
    def _family(self) -> Sequence[Record]:
        return self.study['comparisons'].get(self.key, ())

    @property
    def confounded(self) -> list[Finding]:
        return [one for one in self.all if one.undeclared]

    @property
    def decided(self) -> list[Finding]:
        """The effects whose verdict is 'higher' or 'lower', the largest effect first."""
        return sorted((one for one in self.all if one.differs), key=lambda one: -one.magnitude)

    @property
    def undecided(self) -> list[Finding]:
        return [one for one in self.all if not one.differs and one.verdict != EQUIVALENT]

    @property
    def largest_open(self) -> Finding | None:
        """The largest of the estimated effects that have no decision; None if there are none."""
        known = [one for one in self.undecided if one.estimate is not None]
        return max(known, key=lambda one: one.magnitude, default=None)

    def with_verdict(self, verdict: str) -> list[Finding]:
        return [one for one in self.all if one.verdict == verdict]

    def involving(self, row: str) -> list[Finding]:
        return [one for one in self.all if row in (one.name, one.on)]

    def unlike(self, other: 'Findings') -> list[Finding]:
        """Return the findings on this score whose verdicts differ from those on the score of `other`."""
        verdicts = {one.name: one.verdict for one in other.all}
        return [one for one in self.all if one.verdict != verdicts.get(one.name)]

    def built_on(self, name: str) -> set[str]:
        """Return the rows that have a given row as their base row, directly or through other rows."""
        built = {name}
        for row in self.study['rows']:
            if row['on'] in built:
                built.add(row['name'])
        return built - {name}

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
        costs = self.study.get('cost', {}).get('rows', {})
        flops = [costs.get(side['name'], {}).get('flops') for side in (row, base)]
        sequential = self.study.get('sequential') or row.get('given')
        return Finding(
            name=pair['row'],
            on=pair['on'],
            stored=pair,
            change=row['factor'] or '',
            undeclared=self.undeclared.get(pair['row'], ()),
            cost=flops[0] / flops[1] if all(flops) else 0.0,
            published=None if None in numbers else round(numbers[0] - numbers[1], 6),
            asked_seeds=0 if sequential else len(self.study['seeds']),
            epochs=shared_epochs(row, base),
            digits=self.digits,
        )

    @cached_property
    def published_key(self) -> str:
        """The key of the published score that the page shows next to this score.

        If both rows of at least one comparison have a published number for this score, the result is the key of this score.
        Otherwise, it is the key of the score for which the most comparisons have published numbers of both rows; '' if no
        comparison has them.
        """
        counts: Counter[str] = Counter()
        for pair in self._family:
            row, base = (self.rows[pair[side]]['published'] for side in ('row', 'on'))
            known = row.keys() & base.keys()
            counts.update(metric['key'] for metric in self._published if metric['key'] in known)
        if self.key in counts:
            return self.key
        return next((key for key, _ in counts.most_common(1)), '')

    @property
    def _published(self) -> Sequence[Record]:
        return self.study['published_metrics']

    @property
    def published_label(self) -> str:
        """The name of the published score that the page shows next to this score; '' if no effect is published."""
        labels = {metric['key']: label_of(metric) for metric in self._published}
        return labels.get(self.published_key, '')

    @cached_property
    def chain(self) -> list[Finding]:
        """The comparisons, if they form a chain, in which the base row of each row is the previous row; otherwise, []."""
        steps = self.all
        linked = all(step.on == before.name for before, step in pairwise(steps))
        return steps if linked and len(steps) > 1 and not self.crossed else []

    @cached_property
    def limits(self) -> dict[str, float]:
        """For each row, the score below which a run has collapsed."""
        return limits_by_row(self.study, self.key)

    @cached_property
    def collapsed(self) -> dict[str, list[int]]:
        """For each row with collapsed runs, the seeds of these runs."""
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
        """The total effect: the total gain of a design, or the difference between the last and the first row of a chain.

        The difference is computed from the rounded means, as a reader would compute it. The total effect is None if the
        study has neither a design nor a chain, if an end of the chain is not measured, or if a run at an end of the chain
        collapsed.
        """
        if self.crossed:
            return _share(self.crossed['gain'], 'all factors')
        if not self.chain:
            return None
        first, last = self.chain[0].on, self.chain[-1].name
        ends = [self.mean(row) for row in (last, first)]
        if None in ends:
            return None
        compared = compare_pair(
            self.rows[last], self.rows[first], self.key, self.chain[0].margin, self.limits
        )
        if any(compared.collapsed):
            return None
        return Effect(
            name=f'{last} minus {first}',
            verdict='',
            kind='problem',
            estimate=round(ends[0], self.digits) - round(ends[1], self.digits),
            low=compared.low,
            high=compared.high,
            note='includes a confounded step' if self.confounded else '',
            digits=self.digits,
        )

    @property
    def shares(self) -> list[Effect]:
        """The share of each factor in the total gain, the largest share first. Shares that cannot be computed are left out."""
        if not self.crossed or self.total.estimate is None:
            return []
        known = [share for share in self._all_shares if share.estimate is not None]
        return sorted(known, key=lambda share: -abs(share.estimate))

    @property
    def _all_shares(self) -> list[Effect]:
        return [_share(share, share['factor'], 'share', SHARES) for share in self.crossed['shares']]

    def figure(self) -> EffectsFigure:
        """Return the figure of all effects on this score."""
        chain = self.chain
        what = 'Effects of the factors' if self.crossed else f'Effect of each {self.noun}'
        same_score = self.published_key == self.key
        return EffectsFigure(
            title=f'{what} on {self.label}, in {self.unit}',
            effects=self._lines(),
            margin=self.all[0].margin,
            score=self.label,
            published=self.published_label,
            published_note=''
            if same_score
            else ', a different score or scale: compare the signs, not the sizes',
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
        return lines + self._all_shares


def _share(numbers: Record, name: str, verdict: str = '', group: str = '') -> Effect:
    ends = {key: numbers[key] for key in ('estimate', 'low', 'high')}
    return Effect(name=name, verdict=verdict, kind=verdict or 'problem', group=group, **ends)


def all_findings(study: Record) -> list[Findings]:
    """Return the findings on each score by which rows are compared. The primary score comes first."""
    every = [Findings(study, metric['key']) for metric in study['metrics']]
    primary = study.get('primary')
    every.sort(key=lambda found: found.key != primary)
    return [found for found in every if found.all]
