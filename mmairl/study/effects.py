"""Show the effects of a study on one score on a common axis: as a table with drawings on pages (see
templates/study_effects.html), and as a figure for papers.

For each effect, both show the values for single seeds, the interval, the margin, the verdict and the published effect.
"""

from dataclasses import dataclass
from functools import cached_property

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from mmairl.report.figures import short, styled
from mmairl.report.table import Table
from mmairl.study.findings import Finding, Findings

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
            if self.found.study['design']
            else f'Effect of each {self.found.noun}'
        )
        lower = ' (lower is better)' if self.found.metric['lower_is_better'] else ''
        return f'{what} on {self.found.label}{lower}, in {self.found.unit}'

    @property
    def margin(self) -> float:
        return self.found.all[0].margin or 0.0

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
            values += [one.estimate, one.published, *one.by_seed]
            values += [one.low, one.high] if one.interval else []
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
            numbers = [one.estimate, one.low, one.high]
            rows.append([one.name, *numbers, one.verdict, one.published_size])
        return Table(columns, rows, digits=self.found.digits)


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
    axes.plot(one.by_seed, [row - 0.24] * len(one.by_seed), '|', color='#667085', markersize=4)
    if one.interval:
        axes.hlines(row, one.low, one.high, color=color, linewidth=1.6)
    if one.estimate is not None:
        axes.plot(one.estimate, row, marker, color=color, markerfacecolor=face, markersize=6)
    if one.published is not None:
        _, marker, color, face = MARKS['published']
        axes.plot(
            one.published, row + 0.26, marker, color=color, markerfacecolor=face, markersize=4
        )
