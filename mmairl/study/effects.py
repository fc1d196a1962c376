"""Show the effects of a study on one score on a common axis: as a table with drawings for pages, and as a figure for papers.

For each effect, both show the values for single seeds, the interval, the margin, the verdict and the published effect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from mmairl.report.figures import short, styled
from mmairl.report.table import Table
from mmairl.study.findings import ABSENT, Finding, Findings

ROW_HEIGHT = 0.34  # the height of an effect in inches
WIDTH = 6.9  # the width in inches of the text of a two-column paper
PAPER = {'font.size': 7.5, 'pdf.fonttype': 42, 'svg.fonttype': 'path'}
# For each kind of verdict: the mark as an SVG path around the origin, and the marker, color and fill in matplotlib. The marks
# can be distinguished without color.
MARKS = {
    'differs': ('M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0z', 'o', '#1d5fd1', '#1d5fd1'),
    'equivalent': ('M-5 -5h10v10h-10z', 's', '#12805c', '#12805c'),
    'inconclusive': ('M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z', 'o', '#667085', 'white'),
    'problem': ('M-5 -5l10 10m0 -10l-10 10', 'X', '#b42318', 'white'),
    'published': ('M0 -5l5 5l-5 5l-5 -5z', 'D', '#8a5a00', 'white'),
}


@dataclass(frozen=True)
class EffectsView:
    """The effects on one score, with the axis that they share."""

    found: Findings

    @cached_property
    def shown(self) -> list[Finding]:
        return [*self.found.all, *self.found.interactions]

    @property
    def title(self) -> str:
        what = (
            'Effects of the factors'
            if 'design' in self.found.study
            else f'Effect of each {self.found.noun}'
        )
        lower = ' (lower is better)' if self.found.metric['lower_is_better'] else ''
        return f'{what} on {self.found.label}{lower}, in {self.found.unit}'

    @property
    def margin(self) -> float:
        return self.found.all[0].effect.margin or 0.0

    @property
    def published(self) -> str:
        """The name of the published score, with a remark if it is not the measured score."""
        key = self.found.published_key
        same = key in ('', self.found.key)
        return key if same else f'{key}, a different score: compare the signs, not the sizes'

    @cached_property
    def ticks(self) -> list[float]:
        """The round values that label the axis, including both of its ends."""
        values = [-self.margin, self.margin]
        for one in self.shown:
            values += [one.estimate, one.published, *one.effect.by_seed]
            values += [] if one.collapses else [one.effect.low, one.effect.high]
        known = [value for value in values if value is not None]
        return MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(min(known), max(known)).tolist()

    @property
    def tick_labels(self) -> list[str]:
        return [f'{tick:+.4g}'.replace('-', '−') if tick else '0' for tick in self.ticks]

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its length."""
        low, high = self.ticks[0], self.ticks[-1]
        return round(100 * (value - low) / (high - low), 2)

    def table(self) -> Table:
        """Return the numbers of the effects as a table."""
        columns = ['effect', self.found.label, '95 % low', '95 % high', 'verdict', 'published']
        rows = []
        for one in self.shown:
            numbers = [one.estimate, one.effect.low, one.effect.high]
            rows.append([one.name, *numbers, one.verdict, one.published_size])
        return Table(columns, rows, digits=self.found.digits)


def effects_table(view: EffectsView) -> Markup:
    """Return the table of effects for a page, in which each row draws one effect."""
    head = '<th scope="col">{}</th><th scope="col" class="plot"><span class="said">drawing</span>{}</th>'
    head += '<th scope="col" class="number">Effect</th><th scope="col">Verdict</th>'
    if view.found.published_key:
        head += '<th scope="col" class="number paper">Paper</th>'
    start = _mean_of(view, view.found.chain[0].effect.base) if view.found.chain else 'Effect of'
    lines = Markup('').join(_lines(view))
    text = '{}<table class="effects"><thead><tr>{}</tr></thead><tbody>{}</tbody>{}</table>'
    return Markup(text).format(
        _legend(view), Markup(head).format(start, _axis(view)), lines, _total(view)
    )


def _mean_of(view: EffectsView, row: str) -> str:
    value = view.found.means.get(row)
    return f'{row}: {ABSENT if value is None else format(value, f".{view.found.digits}f")}'


def _legend(view: EffectsView) -> Markup:
    parts = [
        '● higher or lower',
        '○ inconclusive',
        '✕ no verdict',
        'line: 95 % interval',
        'small dots: single seeds',
    ]
    if view.margin:
        parts.insert(1, f'■ equivalent, within ±{view.margin:g} (shaded)')
    if view.published:
        parts.append(f'◇ published: {view.published}')
    spans = Markup('').join(Markup('<span>{}</span>').format(part) for part in parts)
    return Markup('<p class="key">{}</p>').format(spans)


def _axis(view: EffectsView) -> Markup:
    labels = zip(view.ticks, view.tick_labels)
    texts = [
        Markup('<text x="{}%" y="11">{}</text>').format(view.place(at), label)
        for at, label in labels
    ]
    return Markup('<svg class="axis" aria-hidden="true">{}</svg>').format(Markup('').join(texts))


def _lines(view: EffectsView) -> Iterator[Markup]:
    group = ''
    for one in view.shown:
        if one.group and one.group != group:
            group = one.group
            yield Markup('<tr class="group"><th scope="rowgroup" colspan="5">{}</th></tr>').format(
                group
            )
        yield _line(view, one)


def _line(view: EffectsView, one: Finding) -> Markup:
    within = f' within ±{view.margin:g}' if one.kind == 'equivalent' else ''
    cells = [
        Markup('<th scope="row">{}<small>{}</small></th>').format(one.name, one.change),
        Markup('<td class="plot">{}</td>').format(_drawing(view, one)),
        Markup('<td class="number">{}<small>{}</small></td>').format(one.size, one.interval),
        Markup('<td><span class="verdict {}">{}</span><small>{}</small></td>').format(
            one.kind, one.verdict + within, '; '.join(one.notes)
        ),
    ]
    if view.found.published_key:
        cell = '<td class="number paper">{}<small>{}</small></td>'
        cells.append(Markup(cell).format(one.published_size, one.agreement))
    return Markup('<tr>{}</tr>').format(Markup('').join(cells))


def _drawing(view: EffectsView, one: Finding) -> Markup:
    zero, low, high = (view.place(value) for value in (0, -view.margin, view.margin))
    parts = [
        f'<rect class="band" x="{low}%" height="100%" width="{round(high - low, 2)}%"/>',
        f'<line class="zero" x1="{zero}%" x2="{zero}%" y2="100%"/>',
    ]
    if not one.collapses:
        for seed in one.effect.by_seed:
            parts.append(f'<circle class="seed" cx="{view.place(seed)}%" cy="6" r="3"/>')
        if one.effect.low is not None:
            ends = view.place(one.effect.low), view.place(one.effect.high)
            parts.append('<line class="interval" x1="{}%" x2="{}%" y1="17" y2="17"/>'.format(*ends))
    if one.estimate is not None:
        parts.append(_mark(one.kind, view.place(one.estimate), 17))
    if one.published is not None:
        parts.append(
            f'<g class="published">{_mark("published", view.place(one.published), 28)}</g>'
        )
    text = '<svg class="drawing {}" role="img" aria-label="{} {}">{}</svg>'
    return Markup(text).format(one.kind, one.size, one.interval, Markup(''.join(parts)))


def _mark(kind: str, x: float, y: int) -> str:
    return f'<svg class="mark" x="{x}%" y="{y}"><path d="{MARKS[kind][0]}"/></svg>'


def _total(view: EffectsView) -> Markup:
    total = view.found.total
    if not total:
        return Markup('')
    note = 'includes a confounded step' if any(one.undeclared for one in view.found.all) else ''
    text = (
        '<tfoot><tr><th scope="row">{}<small>total, from the first row to the last</small></th><td class="plot"></td>'
        '<td class="number">{}<small>{}</small></td><td><small>{}</small></td></tr></tfoot>'
    )
    return Markup(text).format(_mean_of(view, total.name), total.size, total.interval, note)


@styled(**PAPER)
def effects_figure(view: EffectsView) -> Figure:
    """Return the figure of the effects with the width of a paper's text."""
    names = [short(one.name, 44) for one in view.shown]
    figure = Figure(figsize=(WIDTH, 0.7 + ROW_HEIGHT * len(names)), layout='constrained')
    axes = figure.subplots()
    axes.axvspan(-view.margin, view.margin, color='#e4eaf3', zorder=0)
    axes.axvline(0, color='#667085', linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(view.ticks, view.tick_labels)
    axes.set_xlim(view.ticks[0], view.ticks[-1])
    axes.set_ylim(len(names) - 0.4, -0.6)
    caption = [
        view.title,
        '● higher or lower  ■ equivalent  ○ inconclusive  ✕ no verdict  | one seed',
    ]
    if view.published:
        caption.append(f'◇ published: {view.published}')
    figure.supxlabel('\n'.join(caption), fontsize=6.5)
    axes.grid(axis='y', visible=False)
    right = blended_transform_factory(axes.transAxes, axes.transData)
    for row, one in enumerate(view.shown):
        _draw(axes, row, one)
        axes.text(1.02, row, f'{one.size}  {one.verdict}', transform=right, va='center')
    return figure


def _draw(axes: Axes, row: int, one: Finding) -> None:
    _, marker, color, face = MARKS[one.kind]
    if not one.collapses:
        seeds: Sequence[float] = one.effect.by_seed
        axes.plot(seeds, [row - 0.24] * len(seeds), '|', color='#667085', markersize=4)
        if one.effect.low is not None:
            axes.hlines(row, one.effect.low, one.effect.high, color=color, linewidth=1.6)
    if one.estimate is not None:
        axes.plot(one.estimate, row, marker, color=color, markerfacecolor=face, markersize=6)
    if one.published is not None:
        _, marker, color, face = MARKS['published']
        axes.plot(
            one.published, row + 0.26, marker, color=color, markerfacecolor=face, markersize=4
        )
